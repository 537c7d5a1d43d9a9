"""A list of inputs in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tightfit.cluster.manifest import is_manifest, read_manifest
from tightfit.errors import InputError

HASH = "Ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clips").mkdir()
    for name in ("a.mp4", "b.mp4", "b.png"):
        (tmp_path / "clips" / name).write_bytes(b"x")
    return tmp_path


def lines(folder: Path, *rows: object) -> Path:
    path = folder / "list.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def test_a_line_names_an_input_and_maybe_its_hash_and_output(folder: Path) -> None:
    """Relative to the manifest; what else a line has is the user's; empty lines are none."""
    path = lines(
        folder,
        {"path": "clips/a.mp4", "sha256": HASH, "caption": "a cat"},
        "",
        {"path": "clips/b.mp4"},
        {"path": str(folder / "clips/b.png"), "name": "picture"},
    )
    found = [(e.line, e.path.name, e.sha256, e.name) for e in read_manifest(path)]
    assert found == [
        (1, "a.mp4", HASH.lower(), "a"),
        (3, "b.mp4", None, "b"),
        (4, "b.png", None, "picture"),
    ]


def test_a_csv_is_the_same(folder: Path) -> None:
    """Its first line names the columns."""
    path = folder / "list.csv"
    path.write_text("name,path\n,clips/a.mp4\nsecond,clips/b.mp4\n")
    assert [(e.line, e.name) for e in read_manifest(path)] == [(2, "a"), (3, "second")]


def test_inputs_that_share_a_name_keep_their_endings(folder: Path) -> None:
    """As in a folder."""
    path = lines(folder, {"path": "clips/b.mp4"}, {"path": "clips/b.png"})
    assert [e.name for e in read_manifest(path)] == ["b.mp4", "b.png"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "in line 2 it is no JSON"),
        ("[1]", "in line 2 it is no JSON object"),
        ({"file": "a.mp4"}, "in line 2 it has no `path`"),
        ({"path": 3}, "in line 2 it has no `path`"),
        ({"path": "clips/none.mp4"}, "in line 2 there is no file"),
        ({"path": "clips/../clips/b.mp4"}, "in line 2 .* leads out of the folder"),
        ({"path": "clips/a.mp4"}, "in line 2 it names the file .*, as line 1 does"),
        ({"path": "clips/b.mp4", "name": "a"}, "in line 2 it names an output called `a`"),
        ({"path": "clips/b.mp4", "sha256": "12"}, "in line 2 `12` is no SHA-256"),
        ({"path": "clips/b.mp4", "name": "../b"}, "in line 2 .* cannot name an output"),
        ({"path": "clips/b.mp4", "name": "/b"}, "in line 2 .* cannot name an output"),
        ({"path": "clips/b.mp4", "name": ".b"}, "in line 2 .* cannot name an output"),
        ({"path": "clips/b.mp4", "name": "b\n"}, "in line 2 .* cannot name an output"),
        ({"path": "clips/b.mp4", "name": "b" * 300}, "in line 2 .* cannot name an output"),
    ],
)
def test_a_wrong_line_is_named(folder: Path, row: object, said: str) -> None:
    """In one sentence, before any work."""
    path = lines(folder, {"path": "clips/a.mp4"}, row)
    with pytest.raises(InputError, match=said) as refused:
        read_manifest(path)
    assert "\n" not in str(refused.value)


def test_what_is_no_list_is_refused(folder: Path) -> None:
    """An empty one, one without a column, one that is no text, and one that is not there."""
    for name, content, said in (
        ("e.jsonl", b"\n\n", "lists nothing"),
        ("e.csv", b"file\na\n", "names its columns"),
        ("e.jsonl", b"\xff\xfe\x00", "Cannot read"),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(InputError, match=said):
            read_manifest(folder / name)
    with pytest.raises(InputError, match="No such file"):
        read_manifest(folder / "none.jsonl")


def test_a_manifest_is_told_by_its_ending() -> None:
    """And stands alone."""
    assert is_manifest(["a/list.JSONL"])
    assert not is_manifest(["a.mp4"])
    assert not is_manifest(["a.csv", "b.mp4"])
