"""A VAE that does not fit: the whole try, then the fallback, under every CUDA allocator.

    python bench/vae_fallback.py                                  # writes results/vae_fallback.json
    python bench/vae_fallback.py --card virtual:64GiB --small     # the same steps, no GPU

The job: encode and decode 13 frames of 768x768 with the VAE of Wan 2.1 (true size, random
weights, fp16) under budgets of 6 to 1.5 GiB. Side by side in each job:

``whole``                 one call on the free card; what the errors of the others are taken from
``tightfit``              the planner skips what will not fit
``tightfit-no-estimate``  every rung is tried, so the first try fails and the ladder goes on
``tightfit-learnt``       `tightfit` once more, where the first time met refused workspaces
``inside-handler``        a plain retry inside the except block: tiles of 512, 256, 128, overlap 64

The allocator is chosen before CUDA starts, so each has a process of its own, which writes its
rows as they come. Each measurement has a thread of its own: cuDNN remembers, per thread and
shape, the algorithm it found under the budget of an earlier one. So `seconds` are those of a
first call: weights to the card, planning, choice of algorithms, the work, the result to the host.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
from plain_retry import Measured, retried_inside
from provenance import machine_of, versions_of
from rows import Row, Try, first_fallback, merged, read, table, write
from scales import FULL, SMALL, Scale, smooth_clip

from tightfit.adapters import find_vae, load_vae
from tightfit.card import open_card
from tightfit.errors import MemoryShortage
from tightfit.place import placed
from tightfit.plan.tilesize import TileWish
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Lessons
from tightfit.run.outcome import Outcome
from tightfit.run.vae import Direction
from tightfit.settings import ALLOCATOR_VARIABLES, ALLOCATORS
from tightfit.weigh import weight_bytes

T = TypeVar("T")

WHO = ("whole", "inside-handler", "tightfit-no-estimate", "tightfit", "tightfit-learnt")
DIRECTIONS: tuple[Direction, ...] = ("encode", "decode")
RESULTS = Path(__file__).parent / "results" / "vae_fallback.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every allocator in a process of its own, merge their rows, print a table."""
    options = _parser().parse_args(arguments)
    if options.allocator:
        _one_allocator(options)
        return 0
    rows: list[Row] = []
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    output = options.output or (None if options.small else RESULTS)
    for allocator in ALLOCATORS:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "rows.json"
            ended = _in_a_process(options, allocator, part)
            if not part.exists():
                print(f"{allocator}: {ended}, no rows", file=sys.stderr)
                continue
            found, machine, versions = read(part)
        print(f"{allocator}: {ended}, {len(found)} rows", file=sys.stderr)
        rows += found
        if output:
            kept = _others(output, options.only, versions)
            write(output, _in_order([*kept, *rows]), machine=machine, versions=versions)
    print(table(_in_order(rows)))
    return 0 if rows else 1


def _others(output: Path, only: str, versions: dict[str, Any]) -> list[Row]:
    """Rows of an earlier file that `only` leaves alone, marked where their source differs."""
    if only == "*" or not output.exists():
        return []
    rows, _, then = read(output)
    mark = "" if then == versions else f"measured apart, at commit {then.get('commit')}"
    return [
        replace(row, note="; ".join(filter(None, (row.note, mark))))
        for row in rows
        if not fnmatch(row.job, only)
    ]


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """Allocator by allocator, encode before decode, falling limits, whole first."""

    def key(row: Row) -> tuple[int, ...]:
        _, direction, allocator, label = row.job.split(" ")
        limits = [*FULL.limits, *SMALL.limits]
        who = WHO.index(row.who)
        return list(ALLOCATORS).index(allocator), direction == "decode", limits.index(label), who

    return sorted(rows, key=key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--card", default="cuda:0", help="cuda:N, or virtual:SIZE to rehearse")
    parser.add_argument("--small", action="store_true", help="a small VAE and input, in float32")
    parser.add_argument("--seconds", type=float, default=125, help="per allocator, about")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    parser.add_argument("--only", default="*", help="jobs such as 'seed decode * 1.5GiB'")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    return parser


def _in_a_process(options: argparse.Namespace, allocator: str, part: Path) -> str:
    """Measure under one allocator, killed when it takes much too long; how it ended."""
    command = [sys.executable, __file__, "--card", options.card, "--allocator", allocator]
    command += ["--seconds", str(options.seconds), "--only", options.only, "--output", str(part)]
    command += ["--small"] if options.small else []
    command += ["--commit", options.commit] if options.commit else []
    environment = {k: v for k, v in os.environ.items() if k not in ALLOCATOR_VARIABLES}
    environment[ALLOCATOR_VARIABLES[1]] = ALLOCATORS[allocator]
    try:
        ended = subprocess.run(command, env=environment, timeout=options.seconds + 25, check=False)
    except subprocess.TimeoutExpired:
        return "stopped at its time limit"
    return "done" if ended.returncode == 0 else f"exit code {ended.returncode}"


def _one_allocator(options: argparse.Namespace) -> None:
    """Measure everything once, then again while there is time; rows are written as they come."""
    deadline = time.monotonic() + options.seconds
    bench = Bench(
        options.allocator, _card_name(options), SMALL if options.small else FULL, options.only
    )
    machine = _in_a_thread(lambda: machine_of(open_card(bench.card_name)))
    versions = versions_of(options.commit)
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in bench.rows():
        took = "" if row.seconds is None else f" {row.seconds:.2f} s"
        print(f"{row.job} | {row.who}{took}", file=sys.stderr, flush=True)
        runs.setdefault((row.job, row.who), []).append(row)
        rows = [merged(many) for many in runs.values()]
        write(options.output, rows, machine=machine, versions=versions)
        if time.monotonic() > deadline:
            return


def _card_name(options: argparse.Namespace) -> str:
    """The card; a virtual one takes the allocator as its model."""
    name: str = options.card
    return f"{name},allocator={options.allocator}" if name.startswith("virtual:") else name


@dataclass
class Bench:
    """The jobs of one allocator.

    Attributes:
        allocator: its name, for the rows.
        card_name: opened anew for each measurement.
        scale: how large.
        only: a pattern of the names of the jobs that are wanted.
    """

    allocator: str
    card_name: str
    scale: Scale
    only: str = "*"

    def rows(self) -> Iterator[Row]:
        """All rows of a first pass, then those of further passes, without end."""
        scale = self.scale
        clip = smooth_clip(scale.frames, scale.side, dtype=scale.dtype)
        self.vae = load_vae(find_vae(scale.spec), dtype=scale.dtype)
        self.weights = weight_bytes(self.vae.module)
        self.sources: dict[Direction, torch.Tensor] = {"encode": clip}
        self.wholes: dict[Direction, torch.Tensor] = {}
        self.smallest: dict[Direction, int] = {}
        self._needs: dict[tuple[Direction, str], int | None] = {}
        whole: dict[Direction, Row] = {}
        for direction in DIRECTIONS:
            row = self._whole(direction)
            self.sources["decode"] = self.wholes["encode"]
            self.smallest[direction] = _in_a_thread(partial(self._smallest, direction))
            whole[direction] = replace(row, smallest_tile_bytes=self.smallest[direction])
        jobs = [
            (job, direction, self._budget(size, whole[direction]))
            for job, direction, size in self._jobs()
        ]
        for job, direction, budget in jobs:
            yield replace(whole[direction], job=job)
            yield from self._both_of_ours(job, direction, budget, learnt=True)
        for job, direction, budget in jobs:
            yield _in_a_thread(partial(self._inside, job, direction, budget))
        for _ in range(scale.passes - 1):
            for job, direction, budget in jobs:
                yield from self._both_of_ours(job, direction, budget, learnt=False)

    def _both_of_ours(
        self, job: str, direction: Direction, budget: int, *, learnt: bool
    ) -> Iterator[Row]:
        """Without and with the planner; with `learnt`, once more where workspaces were refused."""
        for who, estimate in (("tightfit-no-estimate", False), ("tightfit", True)):
            lessons = Lessons()
            work = partial(
                self._ours, job, direction, budget=budget, estimate=estimate, lessons=lessons
            )
            row = _in_a_thread(partial(work, who))
            yield row
            short = any(tried.refusals for tried in row.attempts if tried.outcome == "ok")
            if learnt and estimate and short:
                yield _in_a_thread(partial(work, f"{who}-learnt"))

    def _jobs(self) -> Iterator[tuple[str, Direction, float]]:
        """Name, direction and limit of each job that is asked for."""
        for direction in DIRECTIONS:
            for label, size in self.scale.limits.items():
                job = f"seed {direction} {self.allocator} {label}"
                if fnmatch(job, self.only):
                    yield job, direction, size

    @staticmethod
    def _budget(size: float, whole: Row) -> int:
        return int(size * (whole.peak_reserved_bytes or 0) if size < 2 else size)

    def _whole(self, direction: Direction) -> Row:
        """One call on the free card: first calls in threads of their own, and a second one."""
        _in_a_thread(partial(self._free_run, direction))  # libraries load, kernels are compiled
        runs = [
            _in_a_thread(partial(self._free_run, direction)) for _ in range(self.scale.passes - 1)
        ]
        last, (again, warm) = _in_a_thread(
            lambda: (self._free_run(direction), self._free_run(direction))
        )
        runs.append(last)
        outcome = runs[0][0]
        self.wholes[direction] = outcome.value
        equal = all(
            torch.equal(value, outcome.value)
            for value in (again.value, *(run.value for run, _ in runs))
        )
        finite = bool(torch.isfinite(outcome.value.float()).all())
        source = self.sources[direction]
        return merged(
            [
                Row(
                    job="",
                    who="whole",
                    seconds=seconds,
                    peak_reserved_bytes=outcome.peak_reserved_bytes,
                    peak_allocated_bytes=outcome.peak_bytes,
                    bit_equal=equal,
                    rms_error=0.0,
                    note=(
                        f"the free card, measured once for each allocator and direction; "
                        f"{warm:.2f} s when the same thread runs it again; random weights"
                        f"{'' if finite else '; NOT FINITE'}"
                    ),
                    attempts=_tries(outcome),
                    baseline_bytes=outcome.baseline_bytes,
                    library_workspace_bytes=outcome.before_bytes,
                    weights_bytes=self.weights,
                    input_bytes=source.nbytes,
                )
                for _, seconds in runs
            ]
        )

    def _free_run(self, direction: Direction) -> tuple[Outcome, float]:
        card = open_card(self.card_name)
        request = Request(budget=card.read().total, wish=TileWish(mode="off"), estimate=False)
        job = Job(self.vae, direction, card, request)
        start = time.perf_counter()
        outcome = job.run(self.sources[direction])
        return outcome, time.perf_counter() - start

    def _smallest(self, direction: Direction) -> int:
        """Bytes that a run in the smallest tiles needs: all but its results, measured on one."""
        source = self.sources[direction]
        card = open_card(self.card_name)
        request = Request(budget=card.read().total, wish=TileWish(mode="off"), estimate=False)
        job = Job(self.vae, direction, card, request)
        tiled = Job(self.vae, direction, card, replace(request, wish=TileWish()))
        *_, last = tiled.rungs(torch.empty_like(source, device="meta")).in_order(None)
        assert last.tile is not None
        ratio = 1 if direction == "encode" else self.vae.traits.spatial
        height, width = (size // ratio for size in last.tile[-2:])
        outcome = job.run(source[..., :height, :width].contiguous())
        assert outcome.peak_bytes is not None
        return outcome.peak_bytes + source.nbytes

    def _ours(
        self,
        job: str,
        direction: Direction,
        who: str,
        *,
        budget: int,
        estimate: bool,
        lessons: Lessons,
    ) -> Row:
        """One run of our ladder from its top."""
        card = open_card(self.card_name)
        source = self.sources[direction]
        row = Row(
            job=job,
            who=who,
            budget_bytes=budget,
            weights_bytes=self.weights,
            input_bytes=source.nbytes,
            smallest_tile_bytes=self.smallest[direction],
        )
        work = Job(self.vae, direction, card, Request(budget, estimate=estimate), lessons=lessons)
        start = time.perf_counter()
        try:
            outcome = work.run(source)
        except MemoryShortage as shortage:
            tries = tuple(Try(text, "oom") for text in shortage.tried)
            note = f"{shortage.what} {shortage.figures}"
            return replace(row, completed=False, note=note, attempts=tries)
        seconds = time.perf_counter() - start
        tries = _tries(outcome)
        fallback = first_fallback(tries)
        equal, error = self._against_whole(direction, outcome.value)
        return replace(
            row,
            seconds=seconds,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            peak_allocated_bytes=outcome.peak_bytes,
            bit_equal=equal,
            rms_error=error,
            predicted_bytes=self._predicted(work, source, outcome) if estimate else None,
            note="; ".join((*outcome.notes, *outcome.adjusted)),
            attempts=tries,
            input_bytes=0 if _input_on_host(outcome) else source.nbytes,
            held_before_fallback_bytes=fallback.held_before_bytes if fallback else None,
            baseline_bytes=outcome.baseline_bytes,
            library_workspace_bytes=outcome.before_bytes,
        )

    def _predicted(self, work: Job, source: torch.Tensor, outcome: Outcome) -> int | None:
        """Allocated bytes that the planner expected of the rung that held."""
        name = outcome.attempt.rung
        if (work.direction, name) not in self._needs:
            rungs = work.rungs(torch.empty_like(source, device="meta")).in_order(None)
            need = next((rung.need() for rung in rungs if rung.name == name), None)
            self._needs[work.direction, name] = need
        need = self._needs[work.direction, name]
        if need is None:
            return None
        # A whole rung counts the source, which is not on the card here; a tile counts itself.
        input_bytes = 0 if outcome.attempt.tile is None else source.nbytes
        return need + (outcome.before_bytes or 0) + self.weights + input_bytes

    def _inside(self, job: str, direction: Direction, budget: int) -> Row:
        """The retry where it should not be: inside the handler of the failed try."""
        card = open_card(self.card_name)
        source = self.sources[direction]
        self.vae.reset()
        card.trim()
        before = card.read().allocated
        tries: list[Measured] = []
        value = None
        note = "every try ran out of memory"
        start = time.perf_counter()
        try:
            with card.cap(budget), placed(self.vae.module, card.device), torch.no_grad():
                loaded = source.to(card.device)
                value = retried_inside(card, self.vae, direction, loaded, self.scale, tries)
                seconds = time.perf_counter() - start
                del loaded
        except torch.OutOfMemoryError:
            note = "weights and input do not fit"
        self.vae.reset()
        gc.collect()
        card.trim()
        row = Row(
            job=job,
            who="inside-handler",
            budget_bytes=budget,
            completed=value is not None,
            attempts=tuple(at.plain() for at in tries),
            library_workspace_bytes=before,
            weights_bytes=self.weights,
            input_bytes=source.nbytes,
            smallest_tile_bytes=self.smallest[direction],
        )
        if tries:
            fallback = first_fallback(tries)
            row = replace(
                row,
                peak_reserved_bytes=max(at.peak_reserved for at in tries),
                peak_allocated_bytes=max(at.peak_bytes or 0 for at in tries),
                held_before_fallback_bytes=fallback.held_before_bytes if fallback else None,
                baseline_bytes=tries[0].held_before_bytes,
            )
        if value is None:
            return replace(row, note=note)
        equal, error = self._against_whole(direction, value)
        return replace(row, seconds=seconds, bit_equal=equal, rms_error=error)

    def _against_whole(self, direction: Direction, value: torch.Tensor) -> tuple[bool, float]:
        """Whether the bits are those of the whole run, and the relative rms of the difference."""
        reference = self.wholes[direction]
        if torch.equal(value, reference):
            return True, 0.0
        reference = reference.float()
        return False, float((value.float() - reference).norm() / reference.norm())


def _tries(outcome: Outcome) -> tuple[Try, ...]:
    return tuple(
        Try(
            attempt.rung,
            attempt.outcome,
            attempt.tile,
            attempt.held_before_bytes,
            attempt.baseline_bytes,
            attempt.peak_bytes,
            attempt.refusals,
        )
        for attempt in outcome.attempts
    )


def _input_on_host(outcome: Outcome) -> bool:
    """Whether the input stayed where it was for want of room."""
    return any(text.startswith("input ") for text in outcome.adjusted)


def _in_a_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, so that nothing which libraries keep per thread is there yet."""
    values: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(work())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]


if __name__ == "__main__":
    sys.exit(main())
