"""VAEs that walk through time: read while frames come, and written while they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.adapters.test_onward import qwen, wan
from tests.cases.common import virtual
from tightfit.adapters import adapt
from tightfit.errors import InputError
from tightfit.run.framing import padding_of, to_source
from tightfit.run.intake import FrameIntake
from tightfit.run.job import Job, Request
from tightfit.run.outcome import Outcome
from tightfit.run.vae import Vae
from tightfit.testing import toy_vae
from tightfit.units import GIB

FRAMES, SIDE = 11, 16


class Coming:
    """Frames of which those that nobody waited for are black."""

    def __init__(self, ends: int | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        size = (FRAMES, 3, SIDE, SIDE)
        self.all = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
        self.there = torch.zeros_like(self.all)
        self.asked: list[int] = []
        self._ends = ends

    def wait(self, count: int) -> int:
        if self._ends is not None and count > self._ends:
            raise InputError("Cannot read a.mp4: cut off.")
        self.asked.append(count)
        self.there[:count] = self.all[:count]
        return count

    def intake(self, vae: Vae) -> FrameIntake:
        padding = padding_of(tuple(self.all.shape), vae.traits)
        return FrameIntake(self.there, vae.traits, padding, wait=self.wait)


class Taken:
    """Keeps what it is given, and when."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []
        self.begun = 0

    def begin(self) -> None:
        self.parts, self.begun = [], self.begun + 1

    def take(self, samples: torch.Tensor) -> None:
        self.parts.append(samples.clone())

    def spool(self, size: int) -> Path | None:
        del size


def adapted(make: Callable[[], torch.nn.Module]) -> Vae:
    torch.manual_seed(0)
    return adapt(make().eval().requires_grad_(False), random=True)


VAES = {
    "toy": lambda: toy_vae("V3", width=8),
    "wan": lambda: adapted(wan),
    "qwen": lambda: adapted(qwen),
}


def job(vae: Vae, direction: str = "encode", **more: object) -> Outcome:
    source = more.pop("source")
    card = virtual(GIB)
    done: Outcome = Job(vae, direction, card, Request(GIB), **more).run(source)  # type: ignore[arg-type]
    assert done.after_bytes == done.before_bytes == 0
    return done


@pytest.mark.parametrize("name", VAES)
def test_an_encode_waits_for_what_it_reads_next_alone(name: str) -> None:
    """The result has the bits of an encode of frames that are all there."""
    vae, coming = VAES[name](), Coming()
    expected = job(vae, source=to_source(coming.all, vae.traits)[0]).value
    made = job(vae, source=coming.intake(vae)).value
    assert torch.equal(made, expected)
    assert coming.asked == [1, 5, 9, 11]


def test_an_end_of_the_frames_ends_the_encode() -> None:
    """With the reader's error, and nothing is left on the card."""
    vae, coming, card = adapted(wan), Coming(ends=6), virtual(GIB)
    with pytest.raises(InputError, match="cut off"):
        Job(vae, "encode", card, Request(GIB)).run(coming.intake(vae))
    assert card.read().allocated == 0
    again = Coming()
    expected = job(vae, source=to_source(again.all, vae.traits)[0]).value
    assert torch.equal(job(vae, source=again.intake(vae)).value, expected)


def test_a_try_that_runs_out_of_memory_while_frames_come_is_followed_by_another() -> None:
    """Which waits for the rest of them, and has all that were there before."""
    vae, coming = toy_vae("V3", width=8), Coming()
    expected = job(vae, source=to_source(coming.all, vae.traits)[0]).value
    intake, failed = coming.intake(vae), False

    def wait(count: int) -> int:
        nonlocal failed
        if count == 9 and not failed:
            failed = True
            raise torch.OutOfMemoryError("for the test")
        return coming.wait(count)

    intake.wait = wait
    made = job(vae, source=intake)
    assert next(each.outcome for each in made.attempts if each.stage == "encode") == "oom"
    assert (made.value - expected).abs().max() < 1e-5
    assert coming.asked == [1, 5, 11]


@pytest.mark.parametrize("name", VAES)
def test_a_decode_gives_away_each_step_as_it_is_made(name: str) -> None:
    """Together they are what a decode into memory gives, to the bit."""
    vae, taken = VAES[name](), Taken()
    latent = torch.randn(1, vae.traits.latent_channels, 3, 2, 2)
    expected = job(vae, "decode", source=latent).value
    left = job(vae, "decode", source=latent, delivery=taken)
    assert left.value.shape == (0, *expected.shape[1:])
    assert left.attempt.rung == "whole"
    assert [part.shape[2] for part in taken.parts] == [1, 4, 4]
    assert torch.equal(torch.cat(taken.parts, dim=2), expected)
    assert taken.begun == 1


def test_a_step_that_is_not_finite_begins_it_all_anew_in_float32() -> None:
    """As a whole decode does; what was given away is void."""
    vae = adapted(wan)
    half = replace(vae, module=vae.module.half(), dtype=torch.float16)
    times = 0

    def overflow(part: object, given: object, made: torch.Tensor) -> torch.Tensor | None:
        nonlocal times
        times += 1
        return made * float("nan") if made.dtype == torch.float16 and times > 1 else None

    hook = half.module.decoder.register_forward_hook(overflow)
    latent, taken = torch.randn(1, 4, 3, 2, 2, dtype=torch.float16), Taken()
    done = job(half, "decode", source=latent, delivery=taken)
    hook.remove()
    assert taken.begun == 2
    assert [part.shape[2] for part in taken.parts] == [1, 4, 4]
    assert all(part.dtype == torch.float16 for part in taken.parts)
    assert all(bool(torch.isfinite(part).all()) for part in taken.parts)
    assert any("redone in float32" in note for note in done.adjusted)
