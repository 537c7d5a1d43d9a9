"""Small files that threads and processes share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tightfit import kept


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Its folder is made, and nothing lies beside it."""
    path = tmp_path / "deep" / "figures.json"
    assert kept.read(path) is None
    kept.write(path, {"a": [1, None]})
    assert kept.read(path) == {"a": [1, None]}
    assert [file.name for file in path.parent.iterdir()] == ["figures.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    """Cut short, not text, or made to exhaust a reader."""
    path = tmp_path / "figures.json"
    path.write_bytes(content)
    assert kept.read(path) is None


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A folder in its place stays a folder, and no half of a file lies beside it."""
    path = tmp_path / "figures.json"
    (path / "inside").mkdir(parents=True)
    kept.write(path, 1)
    assert kept.read(path) is None
    assert [file.name for file in tmp_path.iterdir()] == ["figures.json"]


def test_a_reader_finds_a_whole_file_whoever_writes(tmp_path: Path) -> None:
    """Four writers of different lengths at once."""
    path = tmp_path / "figures.json"
    kept.write(path, [])
    stop = threading.Event()

    def write(at: int) -> None:
        while not stop.is_set():
            kept.write(path, [at] * 5_000 * at)

    writers = [threading.Thread(target=write, args=(at,)) for at in range(4)]
    for writer in writers:
        writer.start()
    found = [kept.read(path) for _ in range(200)]
    stop.set()
    for writer in writers:
        writer.join()
    assert None not in found
    assert all(len(set(values)) <= 1 for values in found)


def test_a_turn_is_for_one_file() -> None:
    """Two files are changed at once; the lock is free again after an error."""
    one, other = Path("one"), Path("other")
    with kept.turn(one), kept.turn(other):
        pass
    with pytest.raises(KeyError), kept.turn(one):
        raise KeyError
    with kept.turn(one):
        pass
