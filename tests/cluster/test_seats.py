"""Which card a process takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.cluster.seats import Seats
from tightfit.errors import JobFailed

HOLD = """
import sys
from pathlib import Path
from tightfit.cluster.seats import Seats
print(Seats(Path(sys.argv[1]), 2).take(), flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_frees_its_card(tmp_path: Path) -> None:
    """Two have different cards; a third waits in vain until one of them dies, whatever kills it."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        lines = [each.stdout.readline() for each in holders if each.stdout is not None]
        assert sorted(int(line) for line in lines) == [0, 1]
        with pytest.raises(JobFailed, match="All 2 cards are taken"):
            Seats(tmp_path, 2).take(patience=0)
        holders[1].kill()
        holders[1].wait()
        assert Seats(tmp_path, 2).take() == int(lines[1])
    finally:
        for each in holders:
            each.kill()
            each.communicate()
