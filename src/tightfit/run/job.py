"""One encode or decode on one card, from host tensor to host tensor."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from tightfit.card import Card, Reading
from tightfit.place import alone, placed
from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.plan.strips.shares import STRIPS
from tightfit.plan.tilesize import TileWish
from tightfit.run.advice import advice
from tightfit.run.boxes import Box
from tightfit.run.cancel import Cancel
from tightfit.run.delivery import Delivery, hand_over
from tightfit.run.estimate import Estimate, Estimator
from tightfit.run.intake import Feed, Given, Intake
from tightfit.run.ladder import Ladder, Lessons, Rung, Stage, leaving_nothing
from tightfit.run.outcome import Outcome, corrected, ledger
from tightfit.run.rungs import EVICT, Progress, VaeRungs
from tightfit.run.strips.way import StripWays
from tightfit.run.vae import Direction, Vae
from tightfit.units import format_bytes
from tightfit.watch import Recorder
from tightfit.watch.events import Tile
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibrations, Key
from tightfit.weigh.workspace import CUDA, NONE

Evict = Callable[[int | None], int]
"""Asked to free so many bytes (None: as many as it can) of idle models; says how many it freed."""

_FACTORS = {"exact": 1.02, "none": 1.2}
_FACTOR = 1.03
"""Kept free above a prediction, for what a dry run does not see: 2.2 % was the most it missed on
CUDA, where scratch is told by a table and fragments by a replay. The CPU keeps no books."""


@dataclass(frozen=True)
class Request:
    """How a job is to be done.

    Attributes:
        budget: bytes that may be used of the card.
        reserve: bytes kept free for others.
        wish: what was asked about tiles.
        estimate: ask the planner before each rung; else every rung is tried.
        evict: frees idle models, where there are any.
        seed: draw the latent from the posterior with this seed; None takes its mode.
        allow_cpu: where the card cannot do it, the host may.
    """

    budget: int
    reserve: int = 0
    wish: TileWish = field(default_factory=TileWish)
    estimate: bool = True
    evict: Evict | None = None
    seed: int | None = None
    allow_cpu: bool = False


@dataclass
class Job:
    """An encode or a decode with `vae` on `card`; `run` may be called again and again.

    With a `delivery` the result goes there as it comes, and the outcome's value is empty. What a
    rung gathers on the host before it is whole, as strips do, is delivered at the end.
    """

    vae: Vae
    direction: Direction
    card: Card
    request: Request
    cancel: Cancel = field(default_factory=Cancel)
    recorder: Recorder = field(default_factory=Recorder)
    lessons: Lessons = field(default_factory=Lessons)
    progress: Progress | None = None
    calibrations: Calibrations = field(default_factory=Calibrations)
    delivery: Delivery | None = None

    def run(self, source: torch.Tensor | Intake) -> Outcome:
        """Code `source` [B,C,…], a host tensor whose sizes the VAE takes, or what becomes one.

        Raises `MemoryShortage` when no rung holds, `Cancelled` when asked to stop, and whatever
        the model raises. Whatever happens, the card then holds what it held before. Jobs of one
        module, or on one card, in several threads run one after the other.
        """
        with alone(self.vae.module), self.card.alone(), leaving_nothing(self.card):
            return self._run(Given(source) if isinstance(source, torch.Tensor) else source)

    def _run(self, source: Intake) -> Outcome:
        self.card.trim()
        self.card.drop_scratch()
        before = self.card.read()
        ladder = self.ladder()
        adjusted: list[str] = []
        estimator = self._estimator()
        first = estimator.calibration
        with (
            self._keeping(estimator),
            self.card.cap(self.request.budget),
            self.card.observe(self.recorder.memory),
            ExitStack() as stack,
        ):
            ladder.drop()
            self.card.trim()
            others = before.allocated or 0
            rungs = self._load(ladder, stack, source, estimator, adjusted, others)
            baseline = self.card.read()
            self.recorder.event("baseline", bytes=baseline.allocated)
            ways = None if rungs is None else self.strips(rungs, ladder.room)
            value = self._climb(ladder, stack, source, rungs, others)
            ran = self.card.read()
        after = self._afterwards(before)
        if self.delivery is not None and value.shape[0]:
            self.delivery.begin()
            value = hand_over(self.delivery, value)
        self.recorder.event("end", held_bytes=after.allocated)
        last = ladder.attempts[-1]
        ladder.notes += corrected(ladder.attempts, None if rungs is None else rungs.probed)
        return Outcome(
            value=self._drawn(value) if self._draws else value,
            attempts=tuple(ladder.attempts),
            exact=last.exact,
            estimate=self._estimate(replace(estimator, calibration=first), source),
            ledger=ledger(
                before,
                baseline,
                ran,
                last,
                weights=weight_bytes(self.vae.module),
                coming=self._coming(),
                reserve=self.request.reserve,
                kind=self.card.kind,
                on_host=ways.host_bytes if ways and STRIPS in last.rung else 0,
            ),
            before_bytes=before.allocated,
            baseline_bytes=baseline.allocated,
            peak_bytes=ladder.peak_bytes,
            peak_reserved_bytes=ladder.peak_reserved_bytes,
            after_bytes=after.allocated,
            notes=tuple(ladder.notes),
            adjusted=tuple(adjusted),
        )

    @contextmanager
    def _keeping(self, estimator: Estimator) -> Iterator[None]:
        """What was learnt inside is kept, also when no rung holds or somebody cancels."""
        before = estimator.calibration
        try:
            yield
        finally:
            runs = [run for run in estimator.calibration.seen if run not in before.seen]
            if runs:
                self.calibrations.add(self._key(), runs, shares=before.shares)

    def _afterwards(self, before: Reading) -> Reading:
        """The card, given back; cycles that the model made may hold some of it until collected."""
        self.card.trim()
        after = self.card.read()
        if (after.allocated or 0) > (before.allocated or 0):
            gc.collect()
            self.card.trim()
            after = self.card.read()
        self.card.check()
        return after

    def ladder(self) -> Ladder:
        """A ladder on this job's card, at its top."""
        return Ladder(
            self.card,
            self.request.budget,
            self.request.reserve,
            module=self.vae.module,
            module_name=type(self.vae.module).__name__,
            reset=self.vae.reset,
            ask=self.request.estimate,
            cancel=self.cancel,
            recorder=self.recorder,
            lessons=self.lessons,
        )

    def _load(
        self,
        ladder: Ladder,
        stack: ExitStack,
        source: Intake,
        estimator: Estimator,
        adjusted: list[str],
        others: int,
    ) -> VaeRungs | None:
        """Weights onto the card; the input too, unless it takes more than half of the room.

        None where not even the weights fit and the host may do the work.
        """
        weights = weight_bytes(self.vae.module)
        coming = weights if self.card.kind == "cpu" else self._coming()
        stage = Stage("load", f"Not enough memory to load {self.vae.traits.name}.", self._advice())

        def enter() -> bool:
            stack.enter_context(placed(self.vae.module, self.card.device))
            return True

        rungs = [Rung("weights", enter, need=lambda: coming)]
        evict = self._evict(ladder, others)
        if evict is not None:
            rungs.append(Rung(EVICT, enter, prepare=lambda: evict(coming)))
        if self.request.allow_cpu and self.card.kind != "cpu":
            rungs.append(Rung("cpu", lambda: False))
        if not ladder.climb(stage, rungs, quiet=True):
            return None
        ladder.assume_held(weights)
        stays = Rung("input on the host", lambda: Feed(source.on_host()))
        moves = Rung("input on the card", lambda: source.feed(self.card.device))
        roomy = source.nbytes * 2 <= ladder.room()
        loaded = ladder.climb(stage, [moves, stays] if roomy else [stays], quiet=True)
        there = loaded.tensor.device
        if there != self.card.device:
            adjusted.append(f"input ({format_bytes(source.nbytes)}) kept on the host")
        ways = self.rungs(loaded.tensor, estimator=estimator, adjusted=adjusted)
        ways.fill = loaded.fill
        ways.host = None if there.type == "cpu" else source.on_host
        return ways

    def _coming(self) -> int:
        """Bytes of weights that are not on the card yet: a user's own module may be there."""
        return weight_bytes(self.vae.module, not_on=self.card.device)

    def _evict(self, ladder: Ladder, others: int) -> Evict | None:
        """The user's eviction, asked for what is missing rather than for the whole need.

        Where not even all that `others` hold of the card would be enough, nobody is asked to go.
        """
        evict = self.request.evict
        if evict is None:
            return None

        def missing(need: int | None) -> int:
            short = 0 if need is None else need - ladder.room()
            if short > others:
                return 0
            # What should have fitted was tried and did not: nobody knows how much is missing.
            return evict(short if short > 0 else None)

        return missing

    def _climb(
        self,
        ladder: Ladder,
        stack: ExitStack,
        source: Intake,
        rungs: VaeRungs | None,
        others: int,
    ) -> torch.Tensor:
        stage = self.stage(source)
        last_resort = self._last_resort(stack, source)
        if rungs is None:
            return ladder.climb(stage, last_resort)
        try:
            in_order = rungs.in_order(self._evict(ladder, others), ladder.room, others)
            return ladder.climb(stage, in_order, last=last_resort)
        finally:
            # Functions of the rungs stay alive in the traceback of an error; the input must not.
            del rungs.source, rungs.fill
            rungs.exact_ways = None  # which knows them, too: a cycle would keep weights for a while

    def strips(self, rungs: VaeRungs, room: Callable[[], int]) -> StripWays:
        """The exact ways, in the `room` that there is; they go between the whole and tiles."""
        ways = StripWays(
            vae=self.vae,
            direction=self.direction,
            call=rungs.call,
            source=rungs.filled,
            card=self.card,
            room=room,
            to_host=rungs.input_to_host,
            before_call=self.cancel.check,
            progress=self._tell,
            say=rungs.adjust,
            evict=None if self.request.evict is None else partial(self.request.evict, None),
        )
        rungs.exact_ways = ways
        return ways

    def stage(self, source: torch.Tensor | Intake) -> Stage:
        """This job in words."""
        name = self.vae.traits.name
        words = "x".join(map(str, source.shape[2:]))
        return Stage(
            self.direction,
            f"Not enough memory to {self.direction} {words} with {name}.",
            self._advice(),
            lesson=f"{name}|{self.direction}|{self.vae.dtype}|{tuple(source.shape)}|"
            f"{self.card.name}|{self.request.budget}",
        )

    def _advice(self) -> str:
        request = self.request
        return advice(
            self.card.read(),
            budget=request.budget,
            reserve=request.reserve,
            wish=request.wish,
            may_try_cpu=self.card.kind != "cpu" and not request.allow_cpu,
        )

    def rungs(
        self,
        loaded: torch.Tensor,
        host: torch.Tensor | None = None,
        *,
        estimator: Estimator | None = None,
        adjusted: list[str] | None = None,
    ) -> VaeRungs:
        """The ways to code `loaded`, which lies on the card, the host, or (to plan) on meta.

        `host` is the same input on the host, to which the rungs may go back.
        """
        call, channels = self._call()
        return VaeRungs(
            vae=self.vae,
            direction=self.direction,
            source=loaded,
            host=None if host is None or host is loaded else lambda: host,
            device=self.card.device,
            call=call,
            channels=channels,
            estimator=estimator or self._estimator(),
            fine=self.request.estimate,
            wish=self.request.wish,
            before_call=self.cancel.check,
            progress=self._tell,
            adjusted=[] if adjusted is None else adjusted,
            delivery=self.delivery,
        )

    def _estimator(self) -> Estimator:
        known = self.calibrations.of(self._key())
        table = CUDA if self.card.kind == "cuda" else NONE
        return Estimator(
            self.vae,
            self.direction,
            _FACTORS.get(self.card.allocator, _FACTOR),
            self.card.allocator,
            self.card.grain,
            replace(table, learnt=known.shares),
            known,
        )

    def _key(self) -> Key:
        """What this job's figures hold for."""
        return Key(
            # Of one class there are many: wide and narrow, of this release and that.
            f"{self.vae.traits.name} {weight_bytes(self.vae.module)}",
            self.direction,
            str(self.vae.dtype).removeprefix("torch."),
            self.card.hardware,
            torch.__version__,
            self.card.libraries,
        )

    def _last_resort(self, stack: ExitStack, source: Intake) -> Iterator[Rung[torch.Tensor]]:
        """The host, where that is allowed: the weights leave the card, one item at a time."""
        if not self.request.allow_cpu or self.card.kind == "cpu":
            return

        def run() -> torch.Tensor:
            stack.close()
            call, _ = self._call()
            pieces = []
            with placed(self.vae.module, "cpu"), torch.no_grad():
                for item in torch.split(source.on_host(), 1):
                    self.cancel.check()
                    pieces.append(call(item))
                    self._tell("cpu", len(pieces), source.shape[0])
            return torch.cat(pieces)

        yield Rung("cpu", run)

    def _call(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
        """What a rung calls, and how many channels that gives."""
        traits = self.vae.traits
        if self.direction == "decode":
            return self.vae.decode, traits.channels
        if self._draws and self.vae.moments is not None:
            return self.vae.moments, 2 * traits.latent_channels
        return self.vae.encode, traits.latent_channels

    @property
    def _draws(self) -> bool:
        """Whether the latent is drawn: then rungs give its moments, and noise is added once."""
        return (
            self.direction == "encode"
            and self.request.seed is not None
            and self.vae.moments is not None
        )

    def _drawn(self, moments: torch.Tensor) -> torch.Tensor:
        """One latent of the posterior; the same noise at every rung, budget and device."""
        mean, log_variance = moments.float().chunk(2, dim=1)
        generator = torch.Generator().manual_seed(self.request.seed or 0)
        noise = torch.randn(mean.shape, generator=generator)
        return (mean + torch.exp(0.5 * log_variance) * noise).to(moments.dtype)

    def _tell(self, rung: str, done: int, total: int, box: Box | None = None) -> None:
        self.recorder.tell(Tile(rung, done, total, box))
        if self.progress is not None:
            self.progress(rung, done, total)

    def _estimate(self, estimator: Estimator, source: Intake) -> Estimate:
        """For the report: the line through two sizes of one item, and the peak of the input."""
        if not self.request.estimate:
            return Estimate(None, None, None, "not asked")
        whole = (1, *source.shape[1:])
        peak = estimator.likely((min(source.shape[0], MOST_AT_ONCE), *source.shape[1:]))
        if peak is None:
            return Estimate(None, None, None, "unknown: the model cannot run without values")
        small = estimator.smallest_known() or self._quarter(whole)
        fixed, slope = estimator.line(small, whole, estimator.likely)
        learnt = f", {estimator.calibration.source}" if estimator.calibration.seen else ""
        return Estimate(
            fixed,
            slope,
            peak + estimator.held(source.nbytes),
            f"dry run{learnt}",
        )

    def _quarter(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with each side in space halved, to a size that the VAE takes."""
        grid = self.vae.traits.spatial if self.direction == "encode" else 1
        first = len(shape) - min(2, self.vae.traits.axes)
        halves = (max(grid, size // 2 // grid * grid) for size in shape[first:])
        return (*shape[:first], *halves)
