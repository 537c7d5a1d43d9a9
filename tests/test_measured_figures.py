"""Peaks that were measured on an H200, predicted on the meta device and on the models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from tightfit.adapters import find_vae, outline_vae
from tightfit.plan.slack import Replayed, least_reserved, replay
from tightfit.units import GIB, MIB
from tightfit.weigh import weights
from tightfit.weigh.dry import dry_run
from tightfit.weigh.workspace import CUDA, sequence


@dataclass(frozen=True)
class Measured:
    """A whole run of a true-size VAE with random weights (torch 2.11+cu130); MiB."""

    vae: str
    direction: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    allocated: int
    native: int | None = None
    malloc_async: int | None = None
    expandable: int | None = None


_HALF, _BRAIN = torch.float16, torch.bfloat16
FIGURES = [
    Measured("wan2.1-vae", "encode", (1, 3, 13, 768, 768), _HALF, 5125, 7182, 6464, 6154),
    Measured("wan2.1-vae", "decode", (1, 16, 4, 96, 96), _HALF, 6684, 8694, 8256, 7916),
    Measured("wan2.1-vae", "encode", (1, 3, 13, 512, 512), _HALF, 2467, 3410),
    Measured("wan2.1-vae", "decode", (1, 16, 6, 60, 104), _BRAIN, 4729, 6226),
    Measured("wan2.1-vae", "decode", (1, 16, 21, 60, 104), _BRAIN, 4871, 6962, 6624, 5816),
    Measured("wan2.1-vae", "decode", (1, 16, 21, 90, 160), _BRAIN, 10732, 14820),
    Measured("flux-vae", "decode", (1, 16, 128, 128), _BRAIN, 2636, 4528),
    Measured("flux-vae", "decode", (1, 16, 256, 256), _BRAIN, 9940, 17284, 12352, 11472),
    Measured("flux-vae", "decode", (1, 16, 512, 512), _BRAIN, 39148, 68202),
    Measured("flux-vae", "encode", (1, 3, 1024, 1024), _BRAIN, 1744),
    Measured("flux-vae", "encode", (1, 3, 2048, 2048), _BRAIN, 6372, 8682, 7424, 6372),
    Measured("flux-vae", "encode", (1, 3, 4096, 4096), _BRAIN, 24882, 34100),
    Measured("qwen-image-vae", "decode", (1, 16, 1, 166, 166), _BRAIN, 7391, 8040, None, 8038),
    Measured("wan2.2-vae", "encode", (1, 3, 33, 704, 1280), _BRAIN, 5374, 6614),
]


@cache
def moves_of(case: Measured) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """What the run moves, and what lies there before: weights, input and the libraries' own."""
    vae = outline_vae(find_vae(f"random:{case.vae}"), dtype=case.dtype)
    source = torch.empty(case.shape, dtype=case.dtype, device="meta")
    run = dry_run(lambda: vae.call(case.direction)(source))
    held = (CUDA.fixed, *(one.tensor.nbytes for one in weights(vae.module)), source.nbytes)
    return sequence(run, CUDA), held


@cache
def predicted(case: Measured, allocator: str) -> Replayed:
    """Weights, input and the libraries' own are there; then the run moves."""
    moves, held = moves_of(case)
    return replay(moves, allocator, held=held)


@pytest.mark.parametrize("case", FIGURES, ids=lambda c: f"{c.vae} {c.direction} {c.shape}")
def test_allocated_is_predicted_within_three_per_cent_of_measured(case: Measured) -> None:
    """With the table of scratch alone, nothing calibrated."""
    assert predicted(case, "native").allocated == pytest.approx(case.allocated * MIB, rel=0.03)


@pytest.mark.parametrize("case", FIGURES, ids=lambda c: f"{c.vae} {c.direction} {c.shape}")
def test_reserved_is_predicted_as_near_as_each_allocator_allows(case: Measured) -> None:
    """Uncalibrated. One job was measured at 8,694 and at 9,554 MiB under native, and another at
    6,016 and at 6,624 under async, whose rule is not published."""
    for allocator, measured, bar in (
        ("native", case.native, 0.02),
        ("async", case.malloc_async, 0.11),
        ("expandable", case.expandable, 0.10),
    ):
        if measured is not None:
            reserved = predicted(case, allocator).reserved
            assert reserved == pytest.approx(measured * MIB, rel=bar), allocator


@pytest.mark.parametrize(
    ("allocator", "held"), [("native", False), ("async", True), ("expandable", True)]
)
def test_what_a_limit_of_6_gib_does_to_a_whole_encode_is_predicted(
    allocator: str, held: bool
) -> None:
    """On the H200 it ran out under native, and held under the other two (768x768x13, fp16)."""
    moves, there = moves_of(FIGURES[0])
    assert (least_reserved(moves, allocator, held=there) <= 6 * GIB) is held
