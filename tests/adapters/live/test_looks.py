"""What latents look like on their way: as their decode does, in small, without one."""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import AutoencoderKLWan, FluxPipeline
from torch import nn
from torch.nn import functional

from tests.pipelines import tiny
from tightfit.adapters.live.looks import Look, expected
from tightfit.errors import UsageError

SIDE = 12


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A small VAE with weights that know pictures."""
    folder = Path(str(resources.files("tightfit.adapters") / "minis" / "wan2.1-vae"))
    vae: nn.Module = AutoencoderKLWan.from_pretrained(folder, local_files_only=True)
    return vae.eval()


def test_a_picture_is_known_again_by_its_latents(trained: nn.Module) -> None:
    """Colour for colour, about as well as by the decode of this VAE; with no pass through it."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(2, 3, 6, 6, generator=generator)
    picture = functional.interpolate(coarse, size=(8 * SIDE, 8 * SIDE), mode="bicubic").clamp(0, 1)
    config = trained.config
    shift, scale = (
        torch.tensor(each).view(1, -1, 1, 1, 1)
        for each in (config.latents_mean, config.latents_std)
    )
    with torch.no_grad():
        raw = trained.encode((picture * 2 - 1).unsqueeze(2)).latent_dist.mode()
        decoded = trained.decode(raw).sample[:, :, 0] * 0.5 + 0.5
    look = Look.of(trained)
    trained.decode = None  # type: ignore[assignment]
    try:
        seen = look((raw - shift) / scale, height=8 * SIDE, width=8 * SIDE)
    finally:
        del trained.decode
    assert seen is not None
    assert seen.shape == (2, 3, SIDE, SIDE)
    small, own = (functional.adaptive_avg_pool2d(each, SIDE) for each in (picture, decoded))
    for colour in range(3):
        pairs = torch.stack([seen[:, colour].flatten(), small[:, colour].flatten()])
        assert torch.corrcoef(pairs)[0, 1] > 0.6
    assert (seen - small).abs().mean() < 1.3 * (own - small).abs().mean()


def test_looking_leaves_the_vae_and_random_numbers_as_they_were(trained: nn.Module) -> None:
    """Weights, caches, and the generator of the process."""
    before = copy.deepcopy(trained.state_dict())
    state = torch.get_rng_state()
    one, two = Look.of(trained), Look.of(trained)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.allclose(one.colours, two.colours, atol=1e-5)
    assert all(torch.equal(each, before[name]) for name, each in trained.state_dict().items())


def test_packed_latents_are_unpacked_as_their_pipeline_does() -> None:
    """Whatever the shape of the picture; what is no such packing has no look."""
    pipe = tiny.flux()
    look = Look.of(pipe.vae)
    channels, spatial = look.traits.latent_channels, look.traits.spatial
    latents = torch.randn(2, channels, 4, 8)
    packed = FluxPipeline._pack_latents(latents, 2, channels, 4, 8)
    size = {"height": 4 * spatial, "width": 8 * spatial}
    plain, found = look(latents, **size), look(packed, **size)
    assert plain is not None
    assert found is not None
    assert torch.equal(plain, found)
    assert look(packed, height=None, width=None) is None  # not square
    assert look(packed[:, :, :3], **size) is None


def test_norms_that_a_vae_carries_are_undone_before_unpacking() -> None:
    """As FLUX.2's pipeline does it, which scales packed channels."""
    look = Look.of(tiny.flux().vae)
    channels = look.traits.latent_channels
    scales, shifts = torch.rand(4 * channels) + 0.5, torch.randn(4 * channels)
    normed = Look(look.traits, look.colours, look.grey, scales, shifts)
    packed = torch.randn(1, 16, 4 * channels)
    one = normed((packed - shifts) / scales, height=None, width=None)
    two = look(packed, height=None, width=None)
    assert one is not None
    assert two is not None
    assert torch.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "EulerDiscreteScheduler"])
def test_a_straight_step_points_at_what_comes_of_it(name: str) -> None:
    """In both ways to add noise; at the last step that is what was made."""
    end, noise = torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    sigmas = torch.tensor([0.9, 0.6, 0.0])

    def at(sigma: float) -> torch.Tensor:
        return end * (1 - sigma) + noise * sigma if name.startswith("Flow") else end + noise * sigma

    for step in (1, 2):
        kind = type(name, (), {"sigmas": sigmas, "step_index": step, "config": {}})
        found = expected(kind(), at(float(sigmas[step - 1])), at(float(sigmas[step])))
        assert torch.allclose(found, end, atol=1e-5)
    other = SimpleNamespace(sigmas=sigmas, step_index=1, config={})
    assert torch.equal(expected(other, at(0.9), at(0.6)), at(0.6))


def test_what_makes_no_pictures_has_no_look() -> None:
    """Said by its class."""
    with pytest.raises(UsageError, match="`Linear` is not supported"):
        Look.of(nn.Linear(2, 2))
