"""Strips on a CUDA card: the whole run but for rounding, within the budget, all given back."""

from __future__ import annotations

import pytest
import torch

import tightfit
from tests.gpu.common import emptied
from tightfit.card import open_card
from tightfit.run.strips.group_norm import _moments
from tightfit.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


def _rms(one: torch.Tensor, other: torch.Tensor) -> float:
    one, other = one.double(), other.double()
    return float((one - other).square().mean().sqrt() / other.square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 128, 37, 64), (1, 48, 5, 7), (1, 200, 33, 65)])
def test_moments_of_a_strip_are_those_of_its_values(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Mean and sum of squared differences of each channel, in either order of axes."""
    torch.manual_seed(0)
    values = torch.randn(shape, device="cuda").add(1).to(dtype)
    wide = values.double().cpu().flatten(2)[0]
    for form in (torch.channels_last, torch.contiguous_format):
        count, mean, squares = _moments(values.contiguous(memory_format=form))
        assert torch.all(count == wide.shape[1])
        torch.testing.assert_close(mean[0].cpu(), wide.mean(1), rtol=1e-5, atol=1e-6)
        expected = wide.var(1, correction=0) * wide.shape[1]
        torch.testing.assert_close(squares[0].cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("vae", "shape", "vram"),
    [
        ("random:flux-vae-mini", (1, 16, 96, 80), 128 * MIB),
        ("mini:wan2.1-vae", (1, 16, 5, 48, 40), 192 * MIB),
    ],
)
def test_a_decode_in_strips_is_the_whole_one(vae: str, shape: tuple[int, ...], vram: int) -> None:
    """In float32 to 1e-5 of the signal; reserved stays within the budget, and all is given back."""
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    latent = torch.randn(shape)
    if open_card("cuda:0").allocator == "async":
        vram = 192 * MIB  # its pool grows by 32 MiB at a time, and smaller strips may be needed
    emptied()
    before = torch.cuda.memory_allocated()
    whole = tightfit.decode(latent, vae=vae, card="cuda:0", dtype="float32")
    strips = tightfit.decode(latent, vae=vae, card="cuda:0", dtype="float32", vram=vram)
    assert strips.report.attempts[-1]["rung"].endswith("strips"), strips.report.attempts
    assert strips.report.exact
    assert strips.report.peak_reserved_bytes is not None
    assert strips.report.peak_reserved_bytes <= vram
    assert _rms(strips.value.pixels, whole.value.pixels) <= 1e-5
    emptied()  # libraries keep their own workspaces
    assert torch.cuda.memory_allocated() == before
