"""From frames to what a VAE takes, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.run.framing import Padding, to_frames, to_source
from tightfit.run.vae import Traits

PICTURE = Traits("P", 8)
CLIP = Traits("C", 8, temporal=4, axes=3, lead=True)


@given(
    st.sampled_from([PICTURE, CLIP]),
    st.integers(1, 10),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_frames_come_back_as_they_went(traits: Traits, count: int, height: int, width: int) -> None:
    """Padding goes again: the same count, sizes and values."""
    frames = torch.rand(count, 3, height, width)
    source, padding = to_source(frames, traits)
    traits.latent_sizes(tuple(source.shape[2:]))
    back = to_frames(source, traits, width=width, height=height, frames=count)
    assert padding.dropped == 0
    torch.testing.assert_close(back, frames, rtol=0, atol=1e-6)


def test_padding_repeats_the_edges_and_is_reported() -> None:
    """14 frames of 5x7 become 17 of 8x8: last frame, row and column again."""
    frames = torch.rand(14, 3, 5, 7)
    source, padding = to_source(frames, CLIP)
    assert source.shape == (1, 3, 17, 8, 8)
    assert padding == Padding(frames=3, bottom=3, right=1, dropped=0)
    assert torch.equal(source[0, :, 16], source[0, :, 13])
    assert torch.equal(source[..., 7, :], source[..., 4, :])
    assert torch.equal(source[..., 7], source[..., 6])


def test_trimming_leaves_frames_out_and_says_how_many() -> None:
    """14 frames become 13."""
    source, padding = to_source(torch.rand(14, 3, 8, 8), CLIP, trim=True)
    assert source.shape[2] == 13
    assert padding == Padding(dropped=1)
    assert padding.as_dict() == {"frames": 0, "bottom": 0, "right": 0, "dropped": 1}


def test_a_vae_of_pictures_takes_frames_as_items() -> None:
    """Frames are the batch there, and nothing is padded in time."""
    source, padding = to_source(torch.rand(14, 3, 8, 8), PICTURE)
    assert source.shape == (14, 3, 8, 8)
    assert padding == Padding()


def test_bytes_and_floats_mean_the_same() -> None:
    """0 to 255 is 0 to 1, and both become the VAE's range."""
    whole = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    frames = whole.expand(1, 3, 8, 3)
    by_bytes, _ = to_source(frames, PICTURE)
    by_floats, _ = to_source(frames.float() / 255, PICTURE)
    assert torch.equal(by_bytes, by_floats)
    assert by_bytes[0, 0, 0, :3].tolist() == pytest.approx([-1, -0.6, 1])
    unit, _ = to_source(frames, replace(PICTURE, low=0.0))
    assert unit[0, 0, 0, :3].tolist() == pytest.approx([0, 0.2, 1])


def test_what_overshoots_is_clamped_to_0_and_1() -> None:
    """A decoder is not bound to its range."""
    samples = torch.tensor([-3.0, 0.0, 3.0]).view(1, 1, 1, 3).expand(1, 3, 8, 3)
    assert to_frames(samples, PICTURE)[0, 0, 0].tolist() == [0, 0.5, 1]


def test_a_vae_of_sound_takes_no_pictures() -> None:
    """Refused by name."""
    with pytest.raises(UsageError, match="no pictures"):
        to_source(torch.rand(1, 3, 8, 8), Traits("S", 1920, axes=1, channels=2))
