"""Every supported class runs whole, in strips and in tiles, through one interface."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

from tests.cases.common import untold
from tests.clips import smooth
from tightfit.adapters import adapt
from tightfit.card import open_card
from tightfit.run.framing import to_source
from tightfit.run.job import Job, Request
from tightfit.run.vae import Vae

NARROW: dict[str, dict[str, Any]] = {
    "AutoencoderKL": {
        "block_out_channels": (8, 8, 16, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "norm_num_groups": 8,
    },
    "AutoencoderKLFlux2": {"block_out_channels": (8, 8, 16, 16), "norm_num_groups": 8},
    "AutoencoderKLWan": {"base_dim": 4},
    "AutoencoderKLQwenImage": {"base_dim": 4},
    "AutoencoderKLHunyuanVideo": {"block_out_channels": (8, 8, 16, 16), "norm_num_groups": 8},
    "AutoencoderKLLTXVideo": {
        "block_out_channels": (8, 8, 16, 16),
        "decoder_block_out_channels": (8, 8, 16, 16),
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    },
}


def narrow(name: str) -> Vae:
    """The class with few channels, seeded."""
    torch.manual_seed(0)
    module = getattr(diffusers, name)(**NARROW[name])
    return adapt(module.eval().requires_grad_(False))


def footage(vae: Vae) -> torch.Tensor:
    """A source that is larger than the smallest tile, in sizes that the VAE takes."""
    side = 10 * vae.traits.spatial
    frames = 1 + vae.traits.temporal if vae.traits.axes == 3 else 1
    return to_source(smooth(frames, 3, side, side + vae.traits.spatial), vae.traits)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_a_class_runs_whole_in_strips_and_in_tiles(name: str) -> None:
    """Sizes come back right, the budget holds, nothing stays on the card, and strips are exact."""
    vae = narrow(name)
    source = footage(vae)
    card = open_card("virtual:4GiB")
    whole = Job(vae, "encode", card, Request(2**32)).run(source)
    assert whole.attempt.rung == "whole"
    back = Job(vae, "decode", card, Request(2**32)).run(whole.value)
    assert back.value.shape == source.shape
    assert whole.peak_bytes is not None
    assert whole.baseline_bytes is not None
    budget = whole.peak_bytes - (whole.peak_bytes - whole.baseline_bytes) // 8
    for told in (vae, untold(vae)):
        done = Job(told, "encode", card, Request(budget)).run(source)
        assert done.attempt.rung.startswith("strips" if told is vae else "tiles")
        assert done.value.shape == whole.value.shape
        assert done.peak_reserved_bytes is not None
        assert done.peak_reserved_bytes <= budget
        assert done.after_bytes == done.before_bytes == 0
        if told is vae:
            off = (done.value - whole.value).square().mean().sqrt()
            assert off <= 1e-5 * whole.value.square().mean().sqrt()
            assert done.exact


@pytest.mark.parametrize("name", NARROW)
def test_a_class_is_predicted_by_a_dry_run(name: str) -> None:
    """Predicted and measured peak on a virtual card are within 5 %."""
    vae = narrow(name)
    source = footage(vae)
    done = Job(vae, "encode", open_card("virtual:4GiB"), Request(2**32)).run(source)
    assert done.estimate.peak_bytes == pytest.approx(done.peak_bytes, rel=0.05)


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_traits_of_few_blocks_are_what_a_decode_gives(blocks: int) -> None:
    """Hunyuan's configuration names ratios that so few blocks do not reach."""
    vae = diffusers.AutoencoderKLHunyuanVideo(
        block_out_channels=(8,) * blocks,
        down_block_types=("HunyuanVideoDownBlock3D",) * blocks,
        up_block_types=("HunyuanVideoUpBlock3D",) * blocks,
        layers_per_block=1,
        norm_num_groups=4,
    )
    traits = adapt(vae.eval()).traits
    with torch.no_grad():
        made = vae.decode(torch.zeros(1, 16, 2, 2, 2)).sample
    assert made.shape[2:] == (1 + traits.temporal, 2 * traits.spatial, 2 * traits.spatial)
    assert traits.latent_sizes(tuple(made.shape[2:])) == (2, 2, 2)


def test_a_vae_s_own_tiling_is_off_inside_and_restored_outside() -> None:
    """Tiles are ours: the switches of diffusers are put back as the user had them."""
    vae = narrow("AutoencoderKLHunyuanVideo")
    assert vae.module.use_framewise_encoding is True
    vae.module.use_tiling = True
    Job(vae, "encode", open_card("virtual:4GiB"), Request(2**32)).run(footage(vae))
    assert vae.module.use_framewise_encoding is True
    assert vae.module.use_tiling is True
