"""What a job that was killed leaves on a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tightfit.cluster.orphans import PREFIX, end_orphans

HOLD = "import sys; f = open(sys.argv[1], 'w'); print(flush=True); sys.stdin.read()"


def test_what_waits_in_the_folder_of_a_dead_job_is_ended(tmp_path: Path) -> None:
    """Even where the folder is gone; who works for a job that runs is left alone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = (tmp_path / f"{PREFIX}{pid}-abc" for pid in (gone.pid, os.getpid()))
    waiting = []
    for folder in (dead, alive):
        folder.mkdir()
        command = [sys.executable, "-c", HOLD, str(folder / "log")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        waiting.append(process)
    (dead / "log").unlink()
    try:
        assert end_orphans(tmp_path) >= 1
        assert waiting[0].wait(10) < 0
        assert waiting[1].poll() is None
        assert [each.name for each in tmp_path.iterdir()] == [alive.name]
    finally:
        for process in waiting:
            process.kill()
            process.communicate()
