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
def test_the_kernel_converts_every_byte_as_pytorch_does() -> None:
    """Of each dtype, with each kind of scale, in parts of a row and in rows that end in one."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.place.converting.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["69"]
