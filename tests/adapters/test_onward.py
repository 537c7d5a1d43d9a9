"""VAEs of the Wan kind go on where the last piece of a clip ended."""

from __future__ import annotations

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
)
from torch import nn

from tests.cases.common import run_checked, virtual
from tightfit.adapters import adapt
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction, Vae
from tightfit.units import GIB

NARROW = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}
NUMBERS = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}


def wan(**more: object) -> nn.Module:
    """A narrow one."""
    return AutoencoderKLWan(**NARROW, **NUMBERS, **more)


def qwen() -> nn.Module:
    """The same, for pictures."""
    return AutoencoderKLQwenImage(**NARROW, **NUMBERS)


@pytest.fixture(params=[wan, qwen], ids=["wan", "qwen"])
def vae(request: pytest.FixtureRequest) -> Vae:
    """Narrow, with random weights."""
    torch.manual_seed(0)
    return adapt(request.param().eval().requires_grad_(False), random=True)


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_a_clip_in_pieces_is_the_clip(vae: Vae, direction: Direction) -> None:
    """To rounding (a 1x1 layer sees all frames of a piece), and a new clip begins anew."""
    assert vae.onward is not None
    sizes, cuts = (
        ((1, 3, 13, 16, 16), [5, 4, 4])
        if direction == "encode"
        else (
            (1, 4, 4, 2, 2),
            [1, 2, 1],
        )
    )
    source = torch.randn(sizes)
    whole = vae.call(direction)(source)
    for _ in range(2):
        pieces = torch.split(source, cuts, dim=2)
        coded = [vae.onward(direction, piece, at == 0) for at, piece in enumerate(pieces)]
        torch.testing.assert_close(torch.cat(coded, dim=2), whole, rtol=0, atol=1e-5)
    vae.reset()
    caches = [*vars(vae.module)["_feat_map"], *vars(vae.module)["_enc_feat_map"]]
    assert all(kept is None for kept in caches)


def test_tiles_in_time_that_are_asked_for_are_exact() -> None:
    """On a card, wherever they meet; nothing is computed twice in time."""
    torch.manual_seed(0)
    vae = adapt(wan().eval().requires_grad_(False), random=True)
    source = torch.randn(1, 4, 5, 8, 8)
    room = 2 * GIB
    whole = Job(vae, "decode", virtual(room), Request(room)).run(source).value
    request = Request(room, wish=parse_tile("9x64x64"), estimate=False)
    outcome = run_checked(Job(vae, "decode", virtual(room), request), source, whole, tolerance=0)
    assert outcome.exact
    assert outcome.attempt.tile == (9, 64, 64)


@pytest.mark.parametrize(
    "module",
    [
        lambda: wan(patch_size=2, in_channels=12, out_channels=12),
        lambda: AutoencoderKL(block_out_channels=(32,), norm_num_groups=8),
        lambda: AutoencoderKLHunyuanVideo(block_out_channels=(8, 8, 8, 8), norm_num_groups=4),
    ],
    ids=["folds pixels", "pictures", "no cache"],
)
def test_others_do_not(module: object) -> None:
    """They get frames to warm up, or have no time."""
    assert callable(module)
    with torch.device("meta"):
        made = module()
    assert adapt(made, random=True).onward is None
