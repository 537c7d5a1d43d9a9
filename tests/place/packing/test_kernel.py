"""The Triton kernel, interpreted on the CPU where Triton is there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is not installed"
)
def test_the_kernel_gives_back_every_bit() -> None:
    """Full and partial tiles, escapes, raw tiles in between and at the end, in both formats."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.place.packing.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["15"]
