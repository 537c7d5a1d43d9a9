"""The folder of learnt figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.errors import InputError
from tightfit.run.checkup import CacheCheck, clear_cache, look_at_cache


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Two files and a link to a folder that is not ours."""
    folder = tmp_path / "tightfit"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "lessons.json").write_text("12345")
    (folder / "deep" / "er" / "k.json").write_text("123")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "weights").write_text("precious")
    return folder


def test_what_lies_in_it_is_counted(filled: Path) -> None:
    """At any depth."""
    assert look_at_cache(filled) == CacheCheck(str(filled), 2, 8)


def test_emptying_it_says_what_went_and_leaves_the_rest(filled: Path) -> None:
    """The folder stays, and so does what a link in it points to."""
    link = filled / "link"
    link.symlink_to(filled.parent / "theirs")
    gone = clear_cache(filled)
    assert gone.files == 3
    assert list(filled.iterdir()) == []
    assert (filled.parent / "theirs" / "weights").read_text() == "precious"
    assert look_at_cache(filled) == CacheCheck(str(filled), 0, 0)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """And is not made."""
    folder = tmp_path / "none"
    assert look_at_cache(folder) == clear_cache(folder) == CacheCheck(str(folder), 0, 0)
    assert not folder.exists()


def test_a_folder_that_is_a_link_is_left_alone(filled: Path) -> None:
    """Whoever made the link has to decide."""
    link = filled.parent / "cache-link"
    link.symlink_to(filled.parent / "theirs")
    with pytest.raises(InputError, match="is a link to"):
        clear_cache(link)
    assert (filled.parent / "theirs" / "weights").exists()


def test_what_cannot_be_removed_is_named(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with the path."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(InputError, match=r"lessons\.json: Permission denied"):
        clear_cache(filled)
