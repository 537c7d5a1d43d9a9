"""The jobs of `predict.py` under one allocator: lay a network on the card, watch, predict, run."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import groupby

import torch
from held_card import Resident, reside
from predict_bars import CALIBRATED, RANDOM, UNCALIBRATED
from predict_cases import DTYPES, Case
from rows import Row

from tightfit.adapters import find_parts, parse_dtype
from tightfit.card import Card
from tightfit.plan.size import Size
from tightfit.plan.slack import replay
from tightfit.run.calibrating import Watched, calibrated, watch
from tightfit.units import MIB
from tightfit.weigh.calibration import Calibration, Calibrations, Key
from tightfit.weigh.dry import DryRun
from tightfit.weigh.workspace import CUDA, Workspaces, peak_of, sequence

_RUNS, _QUICK = 3, 2.0
"""A job is run so often, until it took so many seconds in all."""


@dataclass(frozen=True)
class Predicted:
    """The most that will be allocated and reserved, all that is held included, in bytes."""

    allocated: int
    reserved: int


def predicted(
    run: DryRun,
    allocator: str,
    *,
    held: Sequence[int],
    workspaces: Workspaces,
    calibration: Calibration | None = None,
) -> Predicted:
    """Replay what `run` will do on an allocator that holds blocks of the sizes `held`.

    What a calibration corrects is added to both figures: slack stays what the replay says.
    """
    moves = sequence(run, workspaces)
    done = replay(moves, allocator, held=[size for size in held if size])
    alone = peak_of(moves)
    more = calibration.corrected(alone) - alone if calibration is not None else 0
    return Predicted(done.allocated + more, done.reserved + more)


@dataclass(frozen=True)
class Lesson:
    """What one small run taught about a stage.

    Attributes:
        calibration: None where it taught nothing.
        words: how it went.
    """

    calibration: Calibration | None
    words: str


@dataclass
class Bench:
    """The jobs of the allocator that this process has.

    Attributes:
        card: under that allocator.
        cases: networks and sizes.
        calibrations: empty at first.
        only: a pattern of the names of the jobs that are wanted.
        deadline: of `time.monotonic`; no job starts after it.
        table: scratch that is taken for granted where nothing was learnt.
        moves: what the small runs did to allocated, by what was run.
        late: names of the jobs that were not started.
    """

    card: Card
    cases: Sequence[Case]
    calibrations: Calibrations
    only: str = "*"
    deadline: float = math.inf
    table: Workspaces = CUDA
    moves: dict[str, tuple[int, ...]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        """Two for each job, as they come."""
        wanted = [case for case in self.cases if self._jobs(case)]
        for _, group in groupby(wanted, key=lambda case: (case.network, case.dtype)):
            cases = list(group)
            if self._is_late():
                self.late += [job for case in cases for job, _ in self._jobs(case)]
                continue
            yield from self._network(cases)
            gc.collect()
            self.card.trim()

    def _network(self, cases: Sequence[Case]) -> Iterator[Row]:
        """Everything about one network, which lies on the card meanwhile."""
        before = self._allocated()
        (part,) = find_parts(f"random:{cases[0].network}")
        dtype = parse_dtype(DTYPES[cases[0].dtype])
        assert dtype is not None
        try:
            network = reside(part, self.card, dtype=dtype)
        except Exception as error:
            words = f"{RANDOM}; the network did not get on the card: {_told(error)}"
            for case in cases:
                for job, _ in self._jobs(case):
                    yield from _failed(job, words)
            return
        stages = _Stages(self, network, before)
        for case in cases:
            yield from stages.rows(case)

    def _jobs(self, case: Case) -> list[tuple[str, Size]]:
        """Name and size of those that are asked for."""
        jobs = case.under(self.card.allocator)
        return [(job, size) for job, size in jobs if fnmatch(job, self.only)]

    def _allocated(self) -> int:
        return self.card.read().allocated or 0

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline


class _Stages:
    """The stages of one network that is on the card."""

    def __init__(self, bench: Bench, network: Resident, before: int) -> None:
        self._bench = bench
        self._network = network
        self._before = before
        self._loaded = bench._allocated()

    def rows(self, case: Case) -> Iterator[Row]:
        """The rows of one stage."""
        bench = self._bench
        try:
            lesson = self._learn(case)
        except Exception as error:
            lesson = Lesson(None, f"calibrating failed: {_told(error)}")
        self._clean()
        for job, size in bench._jobs(case):
            if bench._is_late():
                bench.late.append(job)
                continue
            yield from self._job(job, case, size, lesson)
            self._clean()

    def _learn(self, case: Case) -> Lesson:
        """Watch the small run."""
        bench, card = self._bench, self._bench.card
        dry = self._network.dry(case.stage, case.small)
        watched = watch(card, dry, self._network.call(case.stage, case.small))
        if watched.moves is not None:
            bench.moves[case.job(case.small, card.allocator)] = watched.moves
        key = Key(
            self._network.part.spec,
            case.stage,
            DTYPES[case.dtype],
            card.hardware,
            torch.__version__,
            card.libraries,
        )
        known = calibrated(
            bench.calibrations.of(key),
            dry,
            watched,
            samples=case.small.samples,
            table=bench.table,
        )
        bench.calibrations.keep(key, known)
        known = bench.calibrations.of(key)
        return Lesson(known if known.seen or known.shares else None, _lesson(case, watched, known))

    def _job(self, job: str, case: Case, size: Size, lesson: Lesson) -> Iterator[Row]:
        """Predict, then measure."""
        bench, network = self._bench, self._network
        row = Row(
            job,
            CALIBRATED,
            weights_bytes=sum(network.sizes),
            library_workspace_bytes=self._before,
        )
        kept = left_behind(bench._allocated() - self._loaded, network.tables)
        informed = plain = None
        problem = ""
        try:
            dry = network.dry(case.stage, size)
            plain = predicted(
                dry,
                bench.card.allocator,
                held=[bench.table.fixed, *network.sizes, *network.tables],
                workspaces=bench.table,
            )
            if lesson.calibration is not None:
                informed = predicted(
                    dry,
                    bench.card.allocator,
                    held=[self._before, *network.sizes, *kept],
                    workspaces=replace(bench.table, learnt=lesson.calibration.shares),
                    calibration=lesson.calibration,
                )
            del dry
            row = measured(row, bench.card, network.call(case.stage, size))
        except Exception as error:
            row, problem = replace(row, completed=False), _told(error)
        for who, figures, words in (
            (CALIBRATED, informed, lesson.words),
            (UNCALIBRATED, plain, "the table of scratch alone"),
        ):
            yield replace(
                row,
                who=who,
                predicted_bytes=figures.allocated if figures else None,
                predicted_reserved_bytes=figures.reserved if figures else None,
                note="; ".join(filter(None, (RANDOM, words, row.note, problem))),
            )

    def _clean(self) -> None:
        gc.collect()
        self._bench.card.trim()


def measured(row: Row, card: Card, call: Callable[[], object]) -> Row:
    """Run `call` and write down its peaks, all that is held included; see `_RUNS`."""
    seconds: list[float] = []
    allocated: list[int | None] = []
    reserved: list[int | None] = []
    baseline = refusals = None
    while len(seconds) < _RUNS and sum(seconds) < _QUICK:
        gc.collect()
        card.trim()
        card.reset_peaks()
        before = card.read()
        start = time.perf_counter()
        call()
        card.sync()
        seconds.append(time.perf_counter() - start)
        after = card.read()
        allocated.append(after.peak_allocated)
        reserved.append(after.peak_reserved)
        baseline, refusals = before.allocated, after.refused_since(before)
    notes = []
    known = [size for size in reserved if size is not None]
    if len(set(known)) > 1:
        notes.append(f"reserved {', '.join(f'{size / MIB:,.0f}' for size in known)} MiB in turn")
    if refusals:
        notes.append(f"{refusals} requests were refused in silence")
    return replace(
        row,
        seconds=seconds[-1],
        all_seconds=tuple(seconds),
        peak_allocated_bytes=max((size for size in allocated if size is not None), default=None),
        peak_reserved_bytes=max(known, default=None),
        baseline_bytes=baseline,
        note="; ".join(notes),
    )


def left_behind(size: int, tables: Sequence[int]) -> list[int]:
    """What a first call left behind: the tables that moved to the card, and something of others."""
    rest = size - sum(tables)
    return [*tables, rest] if rest >= 0 else [max(0, size)]


def _lesson(case: Case, watched: Watched, known: Calibration) -> str:
    if not known.seen and not known.shares:
        return f"a run of {case.small} taught nothing: {watched.refusals} requests were refused"
    found = "no history" if watched.learnt is None else f"{watched.learnt.matched:.0%} recognised"
    scratch = "scratch learnt" if known.shares else "scratch by the table"
    factor = "no factor"
    if known.seen:
        factor = f"factor {known.seen[-1].measured / known.seen[-1].predicted:.3f}"
    return f"calibrated on {case.small} ({found}, {scratch}, {factor})"


def _failed(job: str, words: str) -> Iterator[Row]:
    for who in (CALIBRATED, UNCALIBRATED):
        yield Row(job, who, completed=False, note=words)


def _told(error: Exception) -> str:
    """The first line of an error; the error itself holds frames, and they hold tensors."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0][:200] if lines else ''}"
