"""Values on their way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tightfit.errors import JobFailed
from tightfit.media.samples import count_bad, to_bytes

GOAL = Path("out.png")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_round_to_the_nearest_step(dtype: torch.dtype) -> None:
    """Every byte survives the way to float and back; halves do not fall to the step below."""
    steps = torch.arange(256, dtype=torch.float32)
    near = (steps / 255).to(dtype)
    error = (to_bytes(near.expand(1, 3, 1, 256), goal=GOAL)[0, 0, 0].float() - steps).abs().max()
    assert error <= {torch.float32: 0, torch.float16: 0, torch.bfloat16: 1}[dtype]
    assert to_bytes(torch.full((1, 3, 1, 1), 0.999), goal=GOAL).max() == 255


def test_values_beyond_the_range_are_clamped() -> None:
    """A decoder overshoots a little; that must not wrap around."""
    assert to_bytes(
        torch.tensor([-0.2, 0.5, 1.2]).view(1, 3, 1, 1), goal=GOAL
    ).flatten().tolist() == [
        0,
        128,
        255,
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_c01_values_that_are_no_numbers_are_counted_and_refused(value: float) -> None:
    """The message says how many of how many, and what to try."""
    pixels = torch.zeros(1, 3, 4, 4)
    pixels[0, 1, 2] = value
    with pytest.raises(JobFailed, match=r"out\.png: 4 of 48 values are NaN or infinite.*--dtype"):
        to_bytes(pixels, goal=GOAL)


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 1, 4, 4), (1, 4, 4, 4)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """The message names the shape that came."""
    with pytest.raises(JobFailed, match="pixels of shape"):
        to_bytes(torch.zeros(shape), goal=GOAL)


def test_integers_other_than_bytes_are_refused() -> None:
    """There is no telling what range they are in."""
    with pytest.raises(JobFailed, match="int64"):
        to_bytes(torch.zeros(1, 3, 4, 4, dtype=torch.int64), goal=GOAL)


def test_bad_values_are_counted_in_every_float_type() -> None:
    """float8 has no isfinite of its own."""
    values = torch.tensor([0.0, float("nan"), 1.0])
    for dtype in (torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float64):
        assert count_bad(values.to(dtype)) == 1
