"""The VAE of Stable Audio: sound through the same interface as pictures."""

from __future__ import annotations

import warnings

import diffusers
import pytest
import torch

import tightfit
from tightfit.adapters import adapt
from tightfit.card import open_card
from tightfit.run.framing import sound_to_source
from tightfit.run.job import Job, Request
from tightfit.run.vae import Vae


@pytest.fixture(scope="module")
def vae() -> Vae:
    """With few channels, seeded."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # weight norm of the old style
        torch.manual_seed(0)
        module = diffusers.AutoencoderOobleck(
            encoder_hidden_size=16, decoder_input_channels=8, decoder_channels=8
        )
    return adapt(module.eval().requires_grad_(False))


def sound(seconds: float) -> torch.Tensor:
    """Two tones at 44,100 samples a second."""
    time = torch.arange(round(44100 * seconds)) / 44100
    return torch.stack([torch.sin(time * 2000), torch.sin(time * 3000)]) * 0.5


def test_its_traits_are_those_of_sound(vae: Vae) -> None:
    """A hop of 2048 samples of two channels, made for 44,100 a second."""
    traits = vae.traits
    assert (traits.axes, traits.spatial, traits.channels, traits.rate) == (1, 2048, 2, 44100)
    assert traits.latent_channels == 8


def test_sound_of_any_length_comes_back(vae: Vae) -> None:
    """Cut to the samples that went in."""
    samples = sound(0.3)
    latent = tightfit.encode(samples, vae=vae, card="virtual:1GiB").value
    assert latent.latent.shape == (1, 8, 7)
    assert latent.sound_rate == 44100
    back = tightfit.decode(latent, vae=vae, card="virtual:1GiB").value
    assert back.sound is not None
    assert back.sound.samples.shape == samples.shape
    assert back.pixels.shape[0] == 0


def test_what_does_not_fit_whole_runs_in_parts(vae: Vae) -> None:
    """Within the budget, and as close to the whole as the report says."""
    source, _ = sound_to_source(sound(3), vae.traits)
    card = open_card("virtual:4GiB")
    whole = Job(vae, "encode", card, Request(2**32)).run(source)
    assert whole.peak_bytes is not None
    assert whole.baseline_bytes is not None
    budget = whole.baseline_bytes + (whole.peak_bytes - whole.baseline_bytes) // 2
    done = Job(vae, "encode", card, Request(budget)).run(source)
    assert done.attempt.rung != "whole"
    assert done.peak_reserved_bytes is not None
    assert done.peak_reserved_bytes <= budget
    off = (done.value - whole.value).square().mean().sqrt() / whole.value.square().mean().sqrt()
    assert off <= (done.attempt.error_bound or 0) + 1e-5
    assert done.after_bytes == done.before_bytes == 0


def test_a_latent_is_drawn_from_its_posterior(vae: Vae) -> None:
    """The same noise for the same seed."""
    drawn = [
        tightfit.encode(sound(0.1), vae=vae, card="virtual:1GiB", sample=seed).value.latent
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
