"""Outputs are whole or absent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tightfit.errors import InputError
from tightfit.media.files import FOLDER, check_readable, check_writable, whole_file, whole_folder


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def break_off(output: AbstractContextManager[Path], name: str, error: BaseException) -> None:
    """Write half of something, then raise `error` in the body."""
    with output as temporary:
        (temporary / name if name else temporary).write_bytes(b"half")
        raise error


def test_a_file_appears_under_its_name_only_when_the_body_ends(tmp_path: Path) -> None:
    """Until then there is a hidden name with the same suffix in the same folder."""
    goal = tmp_path / "out.png"
    with whole_file(goal) as temporary:
        temporary.write_bytes(b"new")
        assert not goal.exists()
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".png")
        assert temporary.name.startswith(".")
    assert names(tmp_path) == ["out.png"]
    assert goal.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_existing_file_survives_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    """The old bytes stay, the half-written ones go, whatever the exception."""
    goal = tmp_path / "out.png"
    goal.write_bytes(b"old")
    with pytest.raises(error):
        break_off(whole_file(goal), "", error())
    assert names(tmp_path) == ["out.png"]
    assert goal.read_bytes() == b"old"


def test_an_existing_file_is_replaced_on_success(tmp_path: Path) -> None:
    """Success means that the new bytes are there, with ordinary permissions."""
    goal = tmp_path / "out.png"
    goal.write_bytes(b"old")
    with whole_file(goal) as temporary:
        temporary.write_bytes(b"new")
    assert goal.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert goal.stat().st_mode == plain.stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What a symbolic link points to is replaced, not the link."""
    (tmp_path / "real.png").write_bytes(b"old")
    link = tmp_path / "link.png"
    link.symlink_to("real.png")
    with whole_file(link) as temporary:
        temporary.write_bytes(b"new")
    assert link.is_symlink()
    assert (tmp_path / "real.png").read_bytes() == b"new"


def test_f07_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    """Half of the new one lies under another name at most."""
    goal = tmp_path / "out.png"
    goal.write_bytes(b"old")
    program = (
        "import os, pathlib, signal, sys\n"
        "from tightfit.media.files import whole_file\n"
        "with whole_file(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(goal)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert goal.read_bytes() == b"old"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_f07_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    """The message names the file, that the disk is full, and what is free."""
    full = OSError(number, os.strerror(number))
    with pytest.raises(InputError, match=r"out\.png: the disk is full.* is free"):
        break_off(whole_file(tmp_path / "out.png"), "", full)
    assert names(tmp_path) == []


def test_f07_a_file_larger_than_the_disk_is_refused_before_writing(tmp_path: Path) -> None:
    """The message names the bytes needed."""
    says = r"the disk is full; the file needs 1073741824\.0 GiB"
    with pytest.raises(InputError, match=says), whole_file(tmp_path / "out.png", needs=2**60):
        pytest.fail("the body must not run")
    assert names(tmp_path) == []


def test_other_system_errors_pass_unchanged(tmp_path: Path) -> None:
    """An error of an input is not taken for one of the output."""
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "out.png"):
        (tmp_path / "missing").read_bytes()


def test_a_body_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    """No empty file is made up."""
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "out.png"):
        pass
    assert names(tmp_path) == []


def test_a_folder_appears_only_when_the_body_ends(tmp_path: Path) -> None:
    """Its frames are built in a hidden folder beside it."""
    goal = tmp_path / "frames"
    with whole_folder(goal) as temporary:
        (temporary / "frame_00001.png").write_bytes(b"1")
        assert not goal.exists()
    assert names(tmp_path) == ["frames"]
    assert names(goal) == ["frame_00001.png"]


def test_a_folder_of_frames_is_replaced_on_success(tmp_path: Path) -> None:
    """Frames of the old clip do not mix with those of the new one."""
    goal = tmp_path / "frames"
    goal.mkdir()
    for number in (1, 2, 3):
        (goal / f"frame_0000{number}.png").write_bytes(b"old")
    with whole_folder(goal) as temporary:
        (temporary / "frame_00001.png").write_bytes(b"new")
    assert names(tmp_path) == ["frames"]
    assert names(goal) == ["frame_00001.png"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_of_frames_survives_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    """The old frames stay, the new ones go."""
    goal = tmp_path / "frames"
    goal.mkdir()
    (goal / "frame_00001.png").write_bytes(b"old")
    with pytest.raises(error):
        break_off(whole_folder(goal), "frame_00001.png", error())
    assert names(tmp_path) == ["frames"]
    assert (goal / "frame_00001.png").read_bytes() == b"old"


def test_a_folder_with_other_files_is_refused_before_the_work(tmp_path: Path) -> None:
    """The message names the file that would have been lost."""
    (tmp_path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"notes\.txt"), whole_folder(tmp_path):
        pytest.fail("the body must not run")
    assert names(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize(
    ("name", "kinds", "says"),
    [
        ("out.jpg", (".png",), r"must end in \.png"),
        ("out", (".png", ".mp4"), r"must end in \.png, \.mp4"),
        ("out.gif", (".png", FOLDER), "no suffix, for a folder of frames"),
        ("missing/out.png", (".png",), "missing does not exist; make it first"),
        ("folder.png", (".png",), "it is a folder; give a file name"),
        ("pipe.png", (".png",), "not a regular file"),
        ("file", (FOLDER,), "a file is in the way"),
    ],
)
def test_an_output_that_cannot_be_is_refused(
    tmp_path: Path, name: str, kinds: tuple[str, ...], says: str
) -> None:
    """Each refusal says what is wrong."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match=says):
        check_writable(tmp_path / name, kinds)


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the system, since root may write where modes forbid it."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="no permission to write"):
        check_writable(tmp_path / "out.png", (".png",))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("out.PNG", (".png",)),
        ("out", (".png", FOLDER)),
        ("empty.d", (FOLDER,)),
        ("old.png", (".png",)),
    ],
)
def test_a_possible_output_passes(tmp_path: Path, name: str, kinds: tuple[str, ...]) -> None:
    """Upper-case suffixes, new and empty folders, and files to replace are fine."""
    (tmp_path / "empty.d").mkdir()
    (tmp_path / "old.png").write_bytes(b"old")
    check_writable(tmp_path / name, kinds)
    assert names(tmp_path) == ["empty.d", "old.png"]


@pytest.mark.parametrize(
    ("name", "says"), [("missing", "No such file"), ("", "is a folder"), ("empty", "file is empty")]
)
def test_an_input_that_is_not_there_is_refused(tmp_path: Path, name: str, says: str) -> None:
    """Missing, a folder, and empty are told apart."""
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match=says):
        check_readable(tmp_path / name)


def test_a_folder_that_goes_away_is_an_input_error(tmp_path: Path) -> None:
    """What can only be known when the file is written is said in a sentence too."""
    folder = tmp_path / "gone"
    folder.mkdir()
    with pytest.raises(InputError, match=r"Cannot write .*a\.txt: No such file"):
        _write_after_removing(folder)


def _write_after_removing(folder: Path) -> None:
    with whole_file(folder / "a.txt") as part:
        folder.rmdir()
        part.write_text("x")
