"""What killed jobs leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.cluster.leftovers import alone, sweep
from tightfit.errors import UsageError
from tightfit.media.files import whole_file


def test_one_job_at_a_time_writes_into_a_folder(tmp_path: Path) -> None:
    """The second is refused, the next is not, and no lock is left."""
    with (
        alone(tmp_path),
        pytest.raises(UsageError, match="Another job writes into"),
        alone(tmp_path),
    ):
        pass
    with alone(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_being_written_is_swept(tmp_path: Path) -> None:
    """Under the name that `whole_file` really gives, even a long one; nothing else is touched."""
    outs = [tmp_path / "a.safetensors", tmp_path / f"{'long' * 30}.safetensors"]
    left = []
    for out in outs:
        with whole_file(out) as part:
            part.write_bytes(b"cut")
            left.append(part.name)
            kept = part.read_bytes()
        out.unlink()
        (tmp_path / left[-1]).write_bytes(kept)
    others = [".b-01234567.part.safetensors", ".a-0123.part.safetensors", "a.safetensors", ".a.png"]
    for name in others:
        (tmp_path / name).write_bytes(b"theirs")
    assert sweep(tmp_path, outs) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(others)
    assert sweep(tmp_path / "none", outs) == 0


def test_clips_and_folders_of_frames_are_swept_too(tmp_path: Path) -> None:
    """An ending may have digits, or there is none and frames lie in a folder."""
    outs = [tmp_path / "p-0001.mp4", tmp_path / "q-0001"]
    (tmp_path / ".p-0001-01234567.part.mp4").write_bytes(b"cut")
    (tmp_path / ".q-0001-01234567.part").mkdir()
    (tmp_path / ".q-0001-01234567.part" / "frame_000000.png").write_bytes(b"cut")
    (tmp_path / ".q-0002-01234567.part").mkdir()
    assert sweep(tmp_path, outs) == 2
    assert [each.name for each in tmp_path.iterdir()] == [".q-0002-01234567.part"]
