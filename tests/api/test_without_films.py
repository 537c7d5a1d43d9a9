"""What needs no films needs no PyAV."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
sys.modules["av"] = None
import torch, tightfit
frames = tightfit.decode(torch.zeros(1, 16, 8, 8), vae="random:flux-vae-mini", card="virtual:1GiB")
latent = tightfit.encode(torch.zeros(3, 64, 64), vae="random:flux-vae-mini", card="virtual:1GiB")
print(tuple(frames.value.pixels.shape), tuple(latent.value.latent.shape))
"""


@pytest.mark.slow
def test_tensors_are_coded_where_pyav_is_missing() -> None:
    """A server that hands over tensors need not carry a library for films."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout.strip() == "(1, 3, 64, 64) (1, 16, 8, 8)", run.stderr
