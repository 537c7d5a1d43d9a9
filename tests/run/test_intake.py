"""What a job codes, on its way to the card."""

from __future__ import annotations

import resource

import pytest
import torch

from tests.cases.common import virtual
from tightfit.run import intake as intakes
from tightfit.run.framing import padding_of, to_source
from tightfit.run.intake import FrameIntake
from tightfit.run.vae import Traits
from tightfit.units import GIB, MIB

PICTURE = Traits("P", 8)
CLIP = Traits("C", 8, temporal=4, axes=3, lead=True)
UNIT = Traits("U", 8, low=0.0)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """Frames [T,3,5,7] in which each value of an integer type stands at least once."""
    if dtype == torch.uint8:
        return torch.arange(256 * 15).to(dtype)[: 36 * 105].reshape(36, 3, 5, 7)
    whole = torch.arange(65536, dtype=torch.int32)
    count = -(-65536 // 105)
    many = torch.cat([whole, whole[: count * 105 - 65536]])
    return many.to(torch.int16).view(torch.uint16).reshape(count, 3, 5, 7)


def same(frames: torch.Tensor, traits: Traits, dtype: torch.dtype, device: torch.device) -> None:
    """The intake's tensor is that of `to_source`, cast, to the bit."""
    for trim in (False, True):
        expected, padding = to_source(frames, traits, trim=trim)
        intake = FrameIntake(frames, traits, padding, dtype)
        feed = intake.feed(device)
        feed.fill(None)
        assert intake.shape == tuple(feed.tensor.shape) == tuple(expected.shape)
        assert intake.nbytes == feed.tensor.nbytes
        assert feed.tensor.device == device
        assert torch.equal(feed.tensor.cpu(), expected.to(dtype))
        assert torch.equal(intake.on_host(), expected.to(dtype))


@pytest.mark.parametrize("at_once", [64, 2**21])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16], ids=str)
def test_integers_become_on_the_card_what_they_became_on_the_host(
    kind: torch.dtype, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 256, or 65,536, of them, to the bit; whatever part is widened at once."""
    monkeypatch.setattr(intakes, "_AT_ONCE", at_once)
    frames = every_value(kind)[: None if at_once > 64 else 14]
    for traits in (PICTURE, CLIP, UNIT):
        same(frames, traits, dtype, torch.device("cpu"))
    card = virtual(GIB)
    same(frames[:14], CLIP, dtype, card.device)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.float64], ids=str)
def test_floats_become_the_same_too(kind: torch.dtype) -> None:
    """On the host."""
    frames, card = torch.rand(6, 3, 5, 7, dtype=kind), virtual(GIB)
    for traits in (PICTURE, CLIP):
        same(frames, traits, torch.bfloat16, card.device)


def test_frames_are_waited_for_only_as_far_as_they_are_needed() -> None:
    """Those that are there beyond are taken along, once; padding needs the last one."""
    frames = every_value(torch.uint8)[:11]
    expected, padding = to_source(frames, CLIP)
    asked: list[int] = []

    def wait(count: int) -> int:
        asked.append(count)
        return max(count, 7)

    intake = FrameIntake(frames, CLIP, padding, wait=wait)
    feed = intake.feed(torch.device("cpu"))
    feed.fill(1)
    assert torch.equal(feed.tensor[:, :, :7], expected[:, :, :7])
    feed.fill(5)
    assert asked == [1]
    feed.fill(9)
    feed.fill(None)
    feed.fill(None)
    assert asked == [1, 9, 11]
    assert torch.equal(feed.tensor, expected)


def test_an_intake_that_is_cast_is_not_computed_twice() -> None:
    """On the host there is one tensor, which a feed and the rest share."""
    frames = every_value(torch.uint8)[:5]
    intake = FrameIntake(frames, CLIP, padding_of(tuple(frames.shape), CLIP)).to(torch.float16)
    assert intake.on_host() is intake.feed(torch.device("cpu")).tensor
    assert intake.on_host().dtype == torch.float16


def test_a_long_clip_is_never_floats_on_the_host() -> None:
    """Nor a copy of its bytes: 98 MB of them go to a card in parts."""
    frames = torch.ones(400, 3, 256, 320, dtype=torch.uint8)
    padding = padding_of(tuple(frames.shape), PICTURE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    FrameIntake(frames, PICTURE, padding, torch.bfloat16).feed(torch.device("meta")).fill(None)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 32 * MIB
