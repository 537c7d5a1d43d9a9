"""What a call of a pipeline did when: stages, steps, and the highest that memory was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tightfit.api.work import Watching
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.plan.pace import Pace
from tightfit.plan.stage import StagePlan
from tightfit.run.fitting.fitted import Fitted

DENOISE = "denoise"


@dataclass
class Timeline:
    """Stages in the order they were first entered, each with its seconds in all.

    Attributes:
        card: whose memory is looked at.
        watching: who is told.
        seconds: by stage.
        steps: of denoising that were done.
        calls: of denoisers meanwhile.
        peak_allocated, peak_reserved: bytes; None where nobody counts.
        plan: of one call of the denoiser, as its weights are placed now.
    """

    card: Card
    watching: Watching
    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    calls: int = 0
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    plan: StagePlan | None = None
    _denoiser: Fitted | None = None
    _now: str | None = None
    _since: float = 0.0
    _steady: list[float] = field(default_factory=list)
    _stepped: float | None = None

    def begins(self, stage: str | None, *, since: float | None = None) -> None:
        """What comes now is of `stage`, or has been `since` then; None ends the last."""
        now = time.perf_counter()
        if self._now is not None:
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        if stage != self._now and stage is not None:
            self.watching.recorder.event("stage", stage=stage)
            if self.watching.progress is not None:
                self.watching.progress(stage, 0, 0)
        if stage != DENOISE:
            self._stepped = None
        self._now, self._since = stage, now if since is None else since
        self.look()

    def stepped(self, done: int, total: int) -> None:
        """A step of denoising is done."""
        now = time.perf_counter()
        if self._stepped is not None:
            self._steady.append(now - self._stepped)
        self._stepped = now
        self.steps += 1
        self.plan = _plan(self._denoiser) or self.plan
        self.look()
        self.watching.recorder.event("step", done=done, total=total)
        if self.watching.progress is not None:
            self.watching.progress(f"{DENOISE}{self._speed()}", done, total)
        self.watching.cancel.check()

    def look(self) -> None:
        """Keep the peaks, which each call of a network counts anew."""
        now = self.card.read()
        self.peak_allocated = _higher(self.peak_allocated, now.peak_allocated)
        self.peak_reserved = _higher(self.peak_reserved, now.peak_reserved)
        self.watching.recorder.peaks(now.peak_allocated, now.peak_reserved)
        if now.allocated is not None:
            self.watching.recorder.memory(now.allocated, now.reserved or 0)

    @property
    def seconds_per_step(self) -> float | None:
        """The middle one of those that followed another; the first places weights."""
        if self._steady:
            return sorted(self._steady)[len(self._steady) // 2]
        return (
            self.seconds[DENOISE] / self.steps if self.steps and DENOISE in self.seconds else None
        )

    @property
    def pace(self) -> Pace | None:
        """Of one call of the denoiser."""
        return None if self.plan is None else self.plan.pace

    @property
    def limit_seconds(self) -> float | None:
        """Of one step: what its calls of the denoiser take at the least, as far as is known."""
        pace = self.pace
        limit = None if pace is None else pace.limit_seconds
        if limit is None or not self.steps:
            return None
        return limit * max(1, round(self.calls / self.steps))

    @contextmanager
    def following(self, networks: Mapping[str, Fitted]) -> Iterator[None]:
        """While inside, calls of `networks` say which stage it is."""
        before = {name: network.makes_room for name, network in networks.items()}
        for name, network in networks.items():
            network.makes_room = partial(self._called, name, network, before[name])
        try:
            yield
        finally:
            for name, network in networks.items():
                network.makes_room = before[name]
            self.begins(None)

    def _called(
        self,
        name: str,
        network: Fitted,
        makes_room: Callable[[Callable[[], int]], None] | None,
        wanted: Callable[[], int],
    ) -> None:
        stage = stage_of(name)
        if stage == DENOISE:
            self.calls += 1
            self._denoiser = network
        if stage != self._now:
            self.begins(stage)
        self.look()
        if makes_room is not None:
            makes_room(wanted)

    def _speed(self) -> str:
        if not self._steady:
            return ""
        limit = None if self.card.kind == "virtual" else self.limit_seconds
        beside = "" if limit is None else f", limit {limit:.3g}"
        return f" {self._steady[-1]:.3g} s/step{beside}"


def stage_of(network: str) -> str:
    """What a network of a pipeline is called for, by its name there."""
    if network.startswith("text_encoder"):
        return "encode text"
    if network.startswith("image_encoder"):
        return "encode image"
    return "check" if network == "safety_checker" else DENOISE


def _plan(network: Fitted | None) -> StagePlan | None:
    try:
        return None if network is None else network.plan.stages[0]
    except UsageError:  # its weights are on the host
        return None


def _higher(one: int | None, other: int | None) -> int | None:
    known: list[Any] = [each for each in (one, other) if each is not None]
    return max(known, default=None)
