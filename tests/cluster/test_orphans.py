"""What a job that was killed leaves on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tightfit.cluster.orphans import LOCK, PREFIX, end_orphans, job_folder

HOLD = "import sys; f = open(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"
RAY = "/lib/ray/agent.py"


@contextmanager
def waiting(folder: Path, program: str = RAY) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a file of `folder` open."""
    command = [sys.executable, "-c", HOLD, str(folder / "log"), program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def left(base: Path) -> Path:
    """The folder of a job that is no more: nobody holds its lock."""
    folder = base / f"{PREFIX}left"
    folder.mkdir()
    (folder / LOCK).touch()
    return folder


@pytest.mark.parametrize("gone", [False, True])
def test_what_waits_in_the_folder_of_a_dead_job_is_ended(tmp_path: Path, gone: bool) -> None:
    """Even where the folder is gone."""
    folder = left(tmp_path)
    with waiting(folder) as process:
        if gone:
            for path in (*folder.iterdir(), folder):
                path.rmdir() if path.is_dir() else path.unlink()
        assert end_orphans(tmp_path) == 1
        assert process.wait(10) < 0
    assert list(tmp_path.iterdir()) == []


def test_who_works_for_a_job_that_runs_is_left_alone(tmp_path: Path) -> None:
    """Its lock is held; when it ends, its folder goes with it."""
    with job_folder(tmp_path) as folder, waiting(folder) as process:
        assert end_orphans(tmp_path) == 0
        assert process.poll() is None
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_another_program_that_looks_at_a_dead_jobs_log_is_left_alone(tmp_path: Path) -> None:
    """Only Ray's are ended; the folder goes all the same."""
    with waiting(left(tmp_path), "less") as process:
        assert end_orphans(tmp_path) == 0
        assert process.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_job_is_about_to_lock_it_stays(tmp_path: Path) -> None:
    """For a minute; then nobody will."""
    folder = tmp_path / f"{PREFIX}new"
    folder.mkdir()
    end_orphans(tmp_path)
    assert folder.is_dir()
    os.utime(folder, (0, 0))
    end_orphans(tmp_path)
    assert not folder.exists()
