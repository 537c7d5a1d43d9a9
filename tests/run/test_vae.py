"""What the shapes of a VAE mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.plan.tiles import Axis
from tightfit.run.vae import Traits
from tightfit.testing import toy_vae

PICTURE = Traits("P", 8)
CLIP = Traits("C", 8, temporal=4, axes=3, lead=True)
PLAIN_CLIP = Traits("D", 8, temporal=4, axes=3)
SOUND = Traits("S", 1920, axes=1, channels=2)
ALL = (PICTURE, CLIP, PLAIN_CLIP, SOUND)


@pytest.mark.parametrize(
    ("traits", "samples", "latent"),
    [
        (PICTURE, (512, 776), (64, 97)),
        (CLIP, (17, 480, 832), (5, 60, 104)),
        (CLIP, (1, 8, 8), (1, 1, 1)),
        (PLAIN_CLIP, (16, 8, 8), (4, 1, 1)),
        (SOUND, (3840,), (2,)),
    ],
)
def test_whole_samples_are_latent_units(
    traits: Traits, samples: tuple[int, ...], latent: tuple[int, ...]
) -> None:
    """And the axes know their samples again."""
    assert traits.latent_sizes(samples) == latent
    assert tuple(axis.samples for axis in traits.latent_axes(latent)) == samples


@pytest.mark.parametrize(
    ("traits", "samples", "says"),
    [
        (PICTURE, (513, 776), "height of a multiple of 8, not 513"),
        (PICTURE, (512, 771), "width of a multiple of 8, not 771"),
        (CLIP, (16, 8, 8), r"frames of 1 \+ a multiple of 4, not 16"),
        (CLIP, (0, 8, 8), "frames of"),
        (PLAIN_CLIP, (17, 8, 8), "frames of a multiple of 4, not 17"),
        (SOUND, (480777,), "length of a multiple of 1920"),
    ],
)
def test_a_size_the_vae_cannot_take_is_refused_by_name(
    traits: Traits, samples: tuple[int, ...], says: str
) -> None:
    """The axis, the rule, and the size."""
    with pytest.raises(UsageError, match=says):
        traits.latent_sizes(samples)


@given(st.sampled_from(ALL), st.lists(st.integers(1, 4000), min_size=3, max_size=3), st.booleans())
def test_padded_sizes_are_legal_and_nearest(traits: Traits, sizes: list[int], trim: bool) -> None:
    """Never smaller in space; with trim never more frames, except where there are too few."""
    asked = tuple(sizes[: traits.axes])
    padded = traits.padded(asked, trim=trim)
    traits.latent_sizes(padded)
    for at, (one, two) in enumerate(zip(asked, padded, strict=True)):
        time = traits.axes == 3 and at == 0
        ratio = traits.temporal if time else traits.spatial
        fewest = 1 if traits.lead else traits.temporal
        if time and trim and one >= fewest:
            assert one - ratio < two <= one
        else:
            assert one <= two < one + ratio


def test_t11_frames_are_padded_up_or_trimmed_down() -> None:
    """14 frames become 17; trimmed, 13."""
    assert CLIP.padded((14, 8, 8)) == (17, 8, 8)
    assert CLIP.padded((14, 8, 8), trim=True) == (13, 8, 8)
    assert CLIP.padded((17, 8, 8), trim=True) == (17, 8, 8)


def test_the_leading_axis_is_time() -> None:
    """Only the first axis of a clip leads."""
    assert CLIP.latent_axes((5, 60, 104)) == (Axis(5, 4, True), Axis(60, 8), Axis(104, 8))
    assert PICTURE.latent_axes((60, 104)) == (Axis(60, 8), Axis(104, 8))


def test_time_is_cut_only_where_that_helps() -> None:
    """Not in pictures, and not where the network walks through time by itself."""
    assert PLAIN_CLIP.tiles_time
    assert not PICTURE.tiles_time
    assert not toy_vae("V3").traits.tiles_time


def test_a_vae_has_two_directions() -> None:
    """`call` gives the function for a direction."""
    vae = toy_vae("V2")
    assert vae.call("encode") is vae.encode
    assert vae.call("decode") is vae.decode
