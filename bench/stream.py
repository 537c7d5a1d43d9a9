"""Weights larger than the card, against the link's limit and against what else there is.

    python bench/stream.py                                   # writes results/stream.json
    python bench/stream.py --only 'flux.1-dev *' --seconds 560   # some jobs, merged into the file
    python bench/stream.py --who tightfit                    # no peers
    python bench/stream.py --cpu                             # the same steps, no GPU

Each network has random weights, drawn on the card. It runs there resident, which gives C and the
bits; then its weights go to memory that the other processes map as they would a file in the page
cache. Each row has a process of its own: its context is made, a second process takes all of the
card but the named size, and only then the weights are placed. The first step, set-up included, is
timed apart; then steps run one after another, and the median counts. Side by side in each job:

``resident``    on the free card: C
``tightfit``    whose B, and the link W of its process, give the limit max(C, B/W) of the job
peers           where they run; a failure is a row with a note

FLUX.2 is on the host once: the process that ran it resident brings its weights to the host.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from ballast import Ballast, started
from provenance import machine_of, versions_of
from rows import write
from stream_jobs import FULL, MINI, OURS, PEERS, RESIDENT, Job, Model, Run, runs_of
from stream_peers import MARGINS, takes_budget
from stream_rows import StreamRow, beside, finished, in_order, read_rows, summary, table
from stream_weights import Shelf

from tightfit.units import GIB, format_bytes, parse_bytes

RESULTS = Path(__file__).parent / "results" / "stream.json"
_LIBRARIES = ("accelerate", "mmgp", "transformers")
_CHUNK = 2 * GIB
_GRACE = 30.0
_PATIENCE = 2.5
"""A process may take so much longer than expected, and some seconds more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows, each written when it is done, and print a table."""
    options = _parser().parse_args(arguments)
    if options.row:
        _one_process(options)
        return 0
    jobs = [job for job in (MINI if options.cpu else FULL) if fnmatch(job.name, options.only)]
    print(plan(jobs, options.who), file=sys.stderr)
    if options.plan:
        return 0
    output = options.output or (None if options.cpu else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, jobs, Path(folder), output)
        bench.run()
    print(table(in_order(bench.rows, jobs)))
    print(summary(jobs, bench.rows))
    for run in bench.late:
        print(f"no time for {run.job.name} | {run.who}", file=sys.stderr)
    return 0 if bench.rows else 1


def wanted(jobs: Sequence[Job], who: Sequence[str]) -> list[Run]:
    """The rows of one network that are asked for."""
    return [run for run in runs_of(tuple(jobs)) if run.who in who]


def plan(jobs: Sequence[Job], who: Sequence[str]) -> str:
    """What will be run, and the seconds that are expected of it."""
    lines, total = [], 0.0
    for model, group in groupby(jobs, key=lambda job: job.model):
        runs = wanted(list(group), who)
        lines.append(f"{model.build_seconds:6.0f} s  {model.name}: on the free card")
        lines += [
            f"{run.seconds:6.0f} s  {run.job.name} | {run.who}"
            + (", if time is left" if run.extra else "")
            for run in runs
        ]
        total += model.build_seconds + sum(run.seconds for run in runs if not run.extra)
    return "\n".join([*lines, f"{total:6.0f} s  in all, without what runs if time is left"])


def touch(size: int) -> None:
    """Take so much host memory and give it back: some virtual machines grow as it is used.

    What asks before how much there is would be told too little.
    """
    start, taken = time.monotonic(), []
    with suppress(RuntimeError):  # there is no more to be had
        for _ in range(size // _CHUNK):
            taken.append(torch.empty(_CHUNK, dtype=torch.uint8).fill_(1))
    told = format_bytes(_CHUNK * len(taken))
    print(f"touched {told} in {time.monotonic() - start:.0f} s", file=sys.stderr)


@dataclass
class Bench:
    """All rows of one call.

    Attributes:
        options: of the command line.
        jobs: that are asked for.
        folder: for what processes tell one another.
        output: the results file; None is none.
        rows: so far.
        late: that there was no time for.
    """

    options: argparse.Namespace
    jobs: Sequence[Job]
    folder: Path
    output: Path | None
    rows: list[StreamRow] = field(default_factory=list)
    late: list[Run] = field(default_factory=list)

    def run(self) -> None:
        """Network by network; the second process lives as long as this."""
        self._end: float = time.monotonic() + self.options.seconds
        self._earlier: tuple[list[StreamRow], dict[str, Any], dict[str, Any]] = ([], {}, {})
        if self.options.touch:
            touch(parse_bytes(self.options.touch))
        if self.output and self.output.exists():
            self._earlier = read_rows(self.output)
        models = [list(group) for _, group in groupby(self.jobs, key=lambda job: job.model)]
        ballast: Ballast | None = None
        process: subprocess.Popen[bytes] | None = None
        if not self.options.cpu:
            process, ballast = started()
        try:
            for at, jobs in enumerate(models):
                self._network(jobs, ballast, self._needed(models[at + 1 :]))
        finally:
            if process is not None:
                process.kill()

    def _needed(self, models: Sequence[Sequence[Job]]) -> float:
        """Seconds that networks to come need for what has to run."""
        return sum(
            jobs[0].model.build_seconds
            + sum(run.seconds for run in wanted(jobs, self.options.who) if not run.extra)
            for jobs in models
        )

    def _network(self, jobs: Sequence[Job], ballast: Ballast | None, later: float) -> None:
        """Everything about one network."""
        model, runs = jobs[0].model, wanted(jobs, self.options.who)
        if self._left() < model.build_seconds:
            self.late += runs
            return
        folder = self.folder / model.name
        folder.mkdir()
        shelf = Shelf.open(folder)
        try:
            own = [run for run in runs if model.alone and run.who == OURS]
            seconds = model.build_seconds + sum(run.seconds for run in own)
            found = self._process(
                [RESIDENT, *(run.job.name for run in own)], model, shelf, ballast, seconds
            )
            for row in found:
                self._keep([replace(row, job=job.name) for job in jobs] if not row.job else [row])
            if not any(row.who == RESIDENT and row.completed for row in found):
                words = "the resident run failed, so that there is nothing to compare with"
                self._keep(
                    [
                        StreamRow(run.job.name, run.who, completed=False, note=words)
                        for run in runs
                        if run not in own
                    ]
                )
                return
            for at, run in enumerate(runs):
                rest = sum(each.seconds for each in runs[at + 1 :] if not each.extra) + later
                if run not in own:
                    self._row(run, shelf, ballast, rest)
        finally:
            shelf.close()

    def _row(self, run: Run, shelf: Shelf, ballast: Ballast | None, rest: float) -> None:
        """One row; a budget that was too large is made smaller once."""
        if self._left() < (run.seconds + rest if run.extra else 0.7 * run.seconds):
            self.late.append(run)
            return
        for margin in MARGINS if takes_budget(run.who) else MARGINS[:1]:
            found = self._process(
                [run.who, run.job.name], run.job.model, shelf, ballast, run.seconds, margin
            )
            self._keep(found)
            short = any("OutOfMemoryError" in row.note for row in found)
            if not short or self._left() < run.seconds + rest:
                return

    def _process(
        self,
        what: Sequence[str],
        model: Model,
        shelf: Shelf,
        ballast: Ballast | None,
        seconds: float,
        margin: int = MARGINS[0],
    ) -> list[StreamRow]:
        """Run it, killed when it takes much too long; the rows that it wrote."""
        part = shelf.list.with_name("rows.json")
        part.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--row", *what, "--model", model.name]
        command += ["--folder", str(part.parent), "--shelf", str(shelf.file)]
        command += ["--margin", str(margin), "--who", ",".join(self.options.who)]
        command += ["--cpu"] if self.options.cpu else []
        command += ["--commit", self.options.commit] if self.options.commit else []
        descriptors = [shelf.file]
        if ballast is not None:
            command += ["--ballast", f"{ballast.answers},{ballast.orders}"]
            descriptors += [ballast.answers, ballast.orders]
        limit = max(10.0, min(_PATIENCE * seconds + _GRACE, self._left() + _GRACE))
        start = time.monotonic()
        try:
            done = subprocess.run(command, pass_fds=descriptors, timeout=limit, check=False)
            ended = "" if done.returncode == 0 else f"its process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limit:.0f} s"
        if ballast is not None:
            ballast.leave(None)
        took = time.monotonic() - start
        print(f"{' | '.join(what)}: {took:.0f} s, {seconds:.0f} expected {ended}", file=sys.stderr)
        found: list[StreamRow] = []
        if part.exists():
            found, self._machine, self._versions = read_rows(part)
        missing = [name for name in what[1:] if name not in {row.job for row in found}]
        who = OURS if what[0] == RESIDENT else what[0]
        return [*found, *(StreamRow(name, who, completed=False, note=ended) for name in missing)]

    def _keep(self, rows: Sequence[StreamRow]) -> None:
        """Beside the others, and in the file."""
        fresh = {(row.job, row.who) for row in rows}
        others = [row for row in self.rows if (row.job, row.who) not in fresh]
        self.rows = finished([*others, *rows])
        for row in rows:
            took = row.note if row.seconds is None else f"{row.seconds:.4f} s a step"
            print(f"{row.job} | {row.who}: {took}", file=sys.stderr, flush=True)
        versions = getattr(self, "_versions", None)
        if self.output and versions is not None:
            earlier, _, then = self._earlier
            every = beside(earlier, self.rows, then=then, now=versions)
            ordered = in_order(every, MINI if self.options.cpu else FULL)
            write(self.output, ordered, machine=self._machine, versions=versions)

    def _left(self) -> float:
        return self._end - time.monotonic()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="small networks on virtual cards")
    parser.add_argument("--only", default="*", help="jobs such as 'flux.1-dev *'")
    parser.add_argument(
        "--who", type=_names, default=(OURS, *PEERS), help=f"some of {','.join((OURS, *PEERS))}"
    )
    parser.add_argument("--seconds", type=float, default=560, help="no row starts later")
    parser.add_argument("--touch", help="bytes of host memory to take and give back first")
    parser.add_argument("--plan", action="store_true", help="print what would be run, and stop")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    for name in ("--model", "--ballast"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--row", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shelf", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--margin", type=int, default=MARGINS[0], help=argparse.SUPPRESS)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= {OURS, *PEERS}:
        raise argparse.ArgumentTypeError(f"`{text}` is not some of {','.join((OURS, *PEERS))}")
    return names


def _one_process(options: argparse.Namespace) -> None:
    """``--row WHO JOB…``; for ``resident``, jobs are those that run in the same process."""
    from stream_run import Place, come_home, resident, row_of, shelve

    who, *names = options.row
    jobs = {job.name: job for job in (MINI if options.cpu else FULL)}
    ballast = None
    if options.ballast:
        answers, orders = map(int, options.ballast.split(","))
        ballast = Ballast(answers, orders)
    shelf = Shelf(options.shelf, options.folder / "shelf.json")
    place = Place(ballast, options.folder, shelf)
    card = place.free_card()
    machine, versions = machine_of(card), versions_of(options.commit)
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    rows: list[StreamRow] = []

    def keep(row: StreamRow) -> None:
        rows.append(row)
        write(options.folder / "rows.json", rows, machine=machine, versions=versions)

    module = None
    if who == RESIDENT:
        model = next(job.model for job in jobs.values() if job.model.name == options.model)
        row, module, inputs = resident(place, model, card)
        del inputs
        keep(row)
        if not model.alone:
            shelve(place, module, card)
            return
        come_home(module, card)
    for name in names:
        keep(row_of(place, jobs[name], OURS if who == RESIDENT else who, options.margin, module))


if __name__ == "__main__":
    sys.exit(main())
