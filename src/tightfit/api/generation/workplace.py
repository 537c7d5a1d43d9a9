"""The cards on which a pipeline makes what was asked for, and the pipeline there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tightfit import __version__
from tightfit.adapters.live.loras import wearing
from tightfit.adapters.live.variants import by_scheduler, variant_of
from tightfit.adapters.loading.whole import load_pipeline
from tightfit.api.generation.asked import Asked
from tightfit.api.generation.generated import SoFar, describe, failed, refused
from tightfit.api.generation.making import Generated, Keeping, Making
from tightfit.api.generation.preview import Preview
from tightfit.api.generation.prompting import BadPrompt
from tightfit.api.generation.timeline import Timeline
from tightfit.api.memory import Memory
from tightfit.api.sharing.pipelines import (
    FittedPipeline,
    fit_pipeline,
    fitted_pipeline,
    unfit_pipeline,
)
from tightfit.api.sharing.session import open_any
from tightfit.api.sharing.shared_vae import Codes
from tightfit.api.work import dtype_name
from tightfit.card import Card
from tightfit.errors import Cancelled, MemoryShortage, TightfitError, UsageError
from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.report.oom_log import without_prompts
from tightfit.report.record import Report
from tightfit.run.ladder import empty_frames
from tightfit.watch.events import Told

Line = tuple[int | None, str | BadPrompt]
"""A prompt with its number from 1; None is that it is the only one."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """The cards of a job, open, and how much of them may be used.

    Attributes:
        asked: the job.
        memory: of the card on which the denoiser is.
        cards: all of them, that one first.
        vram, reserve: as for `generate`.
        dtype: to load in; None is as stored.
        note: what to say of that.
        codes: how the VAE codes.
        before: bytes allocated on the card.
    """

    asked: Asked
    memory: Memory
    cards: tuple[Card, ...]
    vram: str | int | None
    reserve: str | int | None
    dtype: torch.dtype | None
    note: str | None
    codes: Codes
    before: int | None

    @classmethod
    def opened(
        cls,
        asked: Asked,
        *,
        card: str | Card | Sequence[str | Card] | None,
        vram: str | int | None,
        reserve: str | int | None,
        mode: str,
        allocator: str | None,
        codes: Codes,
    ) -> Workplace:
        """Open what `card` names. Raises `UsageError`."""
        cards = () if card is None else _roomiest_first(card)
        memory = asked.chosen.memory(
            card=cards[0] if cards else None,
            vram=vram,
            reserve=reserve,
            mode=mode,
            allocator=allocator,
            dtype=asked.dtype,
        )
        dtype, note = asked.chosen.computes_in(asked.dtype, memory, asked.weights)
        return cls(
            asked=asked,
            memory=memory,
            cards=cards or (memory.card,),
            vram=vram,
            reserve=reserve,
            dtype=dtype,
            note=note,
            codes=codes,
            before=memory.card.read().allocated,
        )

    def refuse_too_large(self, timeline: Timeline, started: float) -> None:
        """Raise `MemoryShortage` for what cannot run here, as far as a plan can tell."""
        chosen = self.asked.chosen
        several = len(self.cards) > 1
        try:
            chosen.refuse_too_large(
                self.asked.order, self.memory, self.dtype, one_of_several=several
            )
        except MemoryShortage as error:
            about = chosen.about(None)
            error.report = refused(error, self.memory, about, self.before, started)
            error.recorder = timeline.watching.recorder
            raise

    @contextmanager
    def ready(self) -> Iterator[Ready]:
        """While inside, the pipeline is loaded and fitted, as a pipeline of its kind."""
        asked, memory = self.asked, self.memory
        chosen = asked.chosen
        there, pipe = chosen.fitted, chosen.live
        with ExitStack() as stack:
            if pipe is None:
                assert chosen.source is not None
                pipe = load_pipeline(
                    chosen.source,
                    dtype=self.dtype,
                    weights=asked.weights,
                    scheduler=asked.scheduler,
                )
            elif self.dtype not in (None, pipe.dtype):
                raise UsageError(
                    f"dtype {dtype_name(self.dtype)} is asked for, and the pipeline is "
                    f"{dtype_name(pipe.dtype)}: cast it first."
                )
            pipe = variant_of(pipe, asked.kind)
            if chosen.live is not None:
                stack.enter_context(by_scheduler(pipe, asked.scheduler))
            stack.enter_context(wearing(pipe, asked.loras))
            if there is None:
                fit_pipeline(
                    pipe,
                    open_all=lambda: self.cards,
                    vram=self.vram,
                    reserve=self.reserve,
                    mode=memory.mode,
                    pack=asked.pack,
                    home=0,
                )
                stack.callback(lambda: unfit_pipeline(pipe))
                there = fitted_pipeline(pipe)
            stack.enter_context(_coding(there, self.codes))
            yield Ready(self, pipe, there)


@dataclass
class Ready:
    """A pipeline that is ready at its workplace, for one job after the other.

    Attributes:
        place: where it is.
        pipe: of diffusers; fitted: what is known of its networks.
        at_once: the most pictures that one call makes; less after one did not fit.
    """

    place: Workplace
    pipe: Any
    fitted: FittedPipeline
    at_once: int = field(default=MOST_AT_ONCE)

    def make(
        self, lines: Sequence[Line], timeline: Timeline, *, started: float
    ) -> tuple[list[Generated], Report]:
        """Make all, with a report on it. A line that has a number stops nothing where it fails."""
        made: list[Generated] = []
        with self._making(timeline, resume=self.place.asked.resume) as making:
            so_far = self._so_far(started)
            try:
                for number, text in lines:
                    made += self._item(making, number, text)
            except (KeyboardInterrupt, Cancelled) as error:
                if made:
                    error.add_note(f"{len(made)} were written before, and stay")
                raise
            except TightfitError as error:
                error.report = self._failed(error, making, so_far)
                raise
            return made, self._done(making, made, so_far)

    def make_one(
        self, number: int, text: str, timeline: Timeline, *, started: float, resume: bool
    ) -> tuple[list[Generated], Report]:
        """Make prompt `number` of several, with a report on it alone; raises what ended it.

        `resume`: go on with what was left of it, and keep what is there and right.
        """
        with self._making(timeline, resume=resume) as making:
            so_far = self._so_far(started)
            try:
                made = self._prompt(making, number, text)
            except TightfitError as error:
                error.report = self._failed(error, making, so_far)
                raise
            return made, self._done(making, made, so_far)

    @contextmanager
    def _making(self, timeline: Timeline, *, resume: bool) -> Iterator[Making]:
        place = self.place
        asked, pipe = place.asked, self.pipe
        with self.fitted.recording(timeline.watching.recorder):
            shown = asked.preview
            preview = None if shown is None else Preview.of(self.fitted, shown)
            timeline.begins(None)
            told = {
                "scheduler": type(pipe.scheduler).__name__,
                "model": asked.chosen.spec,
                **asked.worn,
                "Software": f"tightfit {__version__}",
            }
            decoder = asked.chosen.decoder(pipe)
            what = asked.what(place.dtype)
            latents = asked.latents is not None
            keeping = Keeping(asked.keep_every, resume, latents, *decoder, what)
            making = Making(pipe, self.fitted, asked.speech, timeline, keeping, told, preview)
            making.at_once = self.at_once
            making.adjusted += [] if place.note is None else [place.note]
            try:
                yield making
            finally:
                self.at_once = making.at_once

    def _so_far(self, started: float) -> SoFar:
        tries = {name: len(network.attempts) for name, network in self.fitted.networks.items()}
        return SoFar(tries, tuple(self.fitted.codings), self.place.before, started)

    def _failed(self, error: Exception, making: Making, so_far: SoFar) -> Report:
        about = self.place.asked.chosen.about(self.fitted)
        return self._told(making, failed(error, making, self.place.memory, about, so_far))

    def _done(self, making: Making, made: Sequence[Generated], so_far: SoFar) -> Report:
        about = self.place.asked.chosen.about(self.fitted)
        return self._told(making, describe(making, self.place.memory, about, made, so_far))

    def _told(self, making: Making, report: Report) -> Report:
        making.timeline.watching.recorder.tell(Told(without_prompts(report.as_dict())))
        return report

    def _item(self, making: Making, number: int | None, text: str | BadPrompt) -> list[Generated]:
        """What becomes of one prompt; of several, an error is one of the results."""
        first = self.place.asked.seeds[0]
        if isinstance(text, BadPrompt):
            return [Generated(None, first, error=f"{text.reason}.")]
        try:
            return self._prompt(making, number, text)
        except Cancelled:
            raise
        except Exception as error:
            if number is None:
                raise
            reason = str(error).strip() or type(error).__name__
            empty_frames(error)
            return [Generated(text, first, error=reason)]

    def _prompt(self, making: Making, number: int | None, text: str) -> list[Generated]:
        asked = self.place.asked
        outs = asked.outs(number)
        order = replace(asked.order, prompt=text)
        if making.keeping.resume and number is not None and outs is not None:
            known = making.there_already(order, asked.seeds, outs)
            if known:
                return known
        return making.make(order, asked.seeds, outs, asked.latent_files(number))


def _roomiest_first(card: str | Card | Sequence[str | Card]) -> tuple[Card, ...]:
    """Of equal ones, as they were named."""
    one = isinstance(card, (str, Card))
    opened = open_any(card, None) if one else open_any(None, card)  # type: ignore[arg-type]
    now = {each.device: each.read() for each in opened}

    def room(each: Card) -> int:
        usable = now[each.device].usable
        return now[each.device].total if usable is None else usable

    return tuple(sorted(opened, key=room, reverse=True))


@contextmanager
def _coding(fitted: FittedPipeline, codes: Codes) -> Iterator[None]:
    """While inside, the pipeline's VAEs code as this job wants it."""
    before, fitted.codes = fitted.codes, codes
    try:
        yield
    finally:
        fitted.codes = before
