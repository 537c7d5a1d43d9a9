"""The colour under transparency."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tightfit.errors import UsageError
from tightfit.media.background import (
    WHITE,
    composite,
    flatten,
    lift,
    name_background,
    parse_background,
)


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ("white", (1.0, 1.0, 1.0)),
        (" Black ", (0.0, 0.0, 0.0)),
        ("#ff8000", (1.0, 128 / 255, 0.0)),
        ("#FF8000", (1.0, 128 / 255, 0.0)),
    ],
)
def test_a_colour_is_read(text: str, colour: tuple[float, float, float]) -> None:
    """Two names and six hexadecimal digits."""
    assert parse_background(text) == colour


@pytest.mark.parametrize("text", ["", "red", "#fff", "ff8000", "#ff800g", "#ff80000"])
def test_another_colour_is_refused_with_the_legal_forms(text: str) -> None:
    """The option's name is in the message."""
    with pytest.raises(
        UsageError, match=r"--background `.*` is not a colour: write white, black or"
    ):
        parse_background(text)


@pytest.mark.parametrize("text", ["white", "black", "#ff8000", "#010203"])
def test_a_colour_is_named_as_it_was_written(text: str) -> None:
    """Reports show what the user typed."""
    assert name_background(parse_background(text)) == text


def test_compositing_is_exact_at_both_ends() -> None:
    """Opaque keeps the very floats; transparent shows the background alone."""
    rgb = np.random.default_rng(0).random((2, 2, 3)).astype(np.float32)
    assert np.array_equal(composite(rgb, np.ones((2, 2, 1), np.float32), WHITE), rgb)
    assert np.all(composite(rgb, np.zeros((2, 2, 1), np.float32), WHITE) == 1)


def test_bytes_are_composited_with_rounding() -> None:
    """200 at alpha 128 over white is 227.4, so 227."""
    rgba = np.array([[[200, 200, 200, 128]]], np.uint8)
    assert flatten(rgba, WHITE).tolist() == [[[227, 227, 227]]]


def test_lifted_pixels_show_the_same_over_their_background() -> None:
    """RGBA laid over the old background is the decoded picture, without a fringe."""
    alpha = torch.tensor([[[0.0, 0.25, 0.5, 1.0]]])
    straight = torch.tensor([0.2, 0.4, 0.6]).view(3, 1, 1)
    seen = straight * alpha + (1 - alpha)
    rgba = lift(seen, alpha, background=WHITE)
    assert torch.equal(rgba[3:], alpha)
    assert torch.allclose(rgba[:3, :, 1:], straight.expand(3, 1, 3), atol=1e-6)
    assert torch.allclose(rgba[:3] * alpha + (1 - alpha), seen, atol=1e-6)
