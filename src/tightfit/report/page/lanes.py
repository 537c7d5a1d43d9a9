"""Copies beside compute, step by step: where compute waited, and how far a step is from its
limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, at, real, rows, text, whole

MOST_STEPS = 8
"""Steps that are drawn; the figures of all are in the table."""
MOST_USES = 240
_MOST_LISTED = 400


@dataclass(frozen=True)
class Use:
    """One use of a block in a step; times in seconds of the step, None where it has none."""

    name: str
    moved: int
    copy_start: float | None
    copy_end: float | None
    reached: float | None
    start: float | None
    end: float | None

    @property
    def stall(self) -> float:
        """Seconds that compute waited for it."""
        if self.reached is None or self.start is None:
            return 0.0
        return max(0.0, self.start - self.reached)


@dataclass(frozen=True)
class Step:
    """One call of a streamed network.

    Attributes:
        number: from 1, over all networks.
        network: which.
        time: seconds of the trace when it was told.
        seconds, limit, compute, copying: T, max(C, B/W), C and B/W; None where not known.
        stall: seconds that compute waited.
        uses: of blocks that stream, in order.
        left_out: uses beyond those.
    """

    number: int
    network: str
    time: float
    seconds: float | None
    limit: float | None
    compute: float | None
    copying: float | None
    stall: float | None
    uses: tuple[Use, ...] = ()
    left_out: int = 0
    times_limit: float | None = None

    @property
    def start(self) -> float:
        """Where its drawing begins: copies may have begun in the step before."""
        return min([0.0, *(use.copy_start for use in self.uses if use.copy_start is not None)])

    @property
    def stop(self) -> float:
        """Where its drawing ends."""
        ends = [each for use in self.uses for each in (use.copy_end, use.end) if each is not None]
        return max([self.seconds or 0.0, self.limit or 0.0, *ends, self.start + 1e-9])

    def percent(self, time: float) -> float:
        """A time of the step as per cent of the drawing's width."""
        return round(100 * (time - self.start) / (self.stop - self.start), 3)

    @property
    def binds(self) -> str:
        """``copies`` or ``compute``; empty where one is not known."""
        if self.compute is None or self.copying is None:
            return ""
        return "copies" if self.copying > self.compute else "compute"


@dataclass(frozen=True)
class Lanes:
    """Attributes:
    drawn: the first, the last, the one furthest from its limit, and some between, in order.
    shown: the one that is looked at first: the furthest from its limit after the first.
    listed: the figures of all steps, thinned where they are very many.
    steps: how many there were.
    """

    drawn: tuple[Step, ...]
    shown: Step
    listed: tuple[Step, ...]
    steps: int


def lanes(events: Sequence[Event]) -> Lanes | None:
    """The streamed steps of a trace; None where there are none."""
    told = [event for event in events if event["event"] == "streamed_step"]
    if not told:
        return None
    if not any(_has_times(event) for event in told):
        return None  # the card has no clock
    steps = [_step(event, number) for number, event in enumerate(told, start=1)]
    steady = steps[1:] or steps  # the first step also places weights
    worst = max(steady, key=lambda step: step.times_limit or 0.0)
    every = -(-len(steps) // (MOST_STEPS - 3)) if len(steps) > MOST_STEPS else 1
    kept = {steps[0].number, steps[-1].number, worst.number}
    kept.update(step.number for step in steps[::every])
    drawn = [
        _with_uses(step, told[step.number - 1])
        for step in steps
        if step.number in sorted(kept)[: MOST_STEPS - 1] or step.number == worst.number
    ]
    shown = next(step for step in drawn if step.number == worst.number)
    thin = -(-len(steps) // _MOST_LISTED)
    listed = [
        step for step in steps if (step.number - 1) % thin == 0 or step.number == worst.number
    ]
    return Lanes(tuple(drawn), shown, tuple(listed), len(steps))


def _has_times(event: Event) -> bool:
    return real(event, "seconds") is not None or any(
        real(use, "start", "copy_start") is not None for use in rows(event, "blocks")
    )


def _step(event: Event, number: int) -> Step:
    stall = real(event, "stall_ms")
    seconds, limit = real(event, "seconds"), real(event, "limit_seconds")
    times = real(event, "times_limit")
    if times is None and seconds is not None and limit:
        times = seconds / limit
    return Step(
        number=number,
        network=text(event, "network"),
        time=at(event) if real(event, "start") is None else real(event, "start") or 0.0,
        seconds=seconds,
        limit=limit,
        compute=real(event, "compute_seconds"),
        copying=real(event, "copy_seconds"),
        stall=None if stall is None else stall / 1000,
        times_limit=times,
    )


def _with_uses(step: Step, event: Event) -> Step:
    told = rows(event, "blocks")
    uses = tuple(
        Use(
            name=text(each, "name") or "?",
            moved=whole(each, "moved_bytes") or 0,
            copy_start=real(each, "copy_start"),
            copy_end=real(each, "copy_end"),
            reached=real(each, "reached"),
            start=real(each, "start"),
            end=real(each, "end"),
        )
        for each in told[:MOST_USES]
    )
    return Step(**{**vars(step), "uses": uses, "left_out": len(told) - len(uses)})
