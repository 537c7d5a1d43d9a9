"""Weights larger than the card, against the link's limit and against what else there is.

    python bench/stream.py                                   # writes results/stream.json
    python bench/stream.py --only 'flux.1-dev *' --seconds 560   # some jobs, merged into the file
    python bench/stream.py --who tightfit                    # no peers
    python bench/stream.py --packed results/packed.json      # the rows of `packed.py` beside
    python bench/stream.py --cpu                             # the same steps, no GPU

Each network has random weights, drawn on the card. It runs there resident, which gives C and the
bits; then its weights go to memory that the other processes map as they would a file in the page
cache. Each row has a process of its own: its context is made, a second process takes all of the
card but the named size, and only then the weights are placed. The first step, set-up included, is
timed apart; then steps run one after another, and the median counts. Side by side in each job:

``resident``    on the free card: C
``tightfit``    whose B, and the link W of its process, give the limit max(C, B/W) of the job;
                weights as they are, and packed in rows that are asked for: `packed.py`
peers           where they run; a failure is a row with a note

FLUX.2 is on the host once: the process that ran it resident brings its weights to the host, and
streams them, first as they are and then packed. ``--traced`` says of each row of ours where the
time of a step goes (`stream_trace.py`); what it sets in the queues of the card is in the figures.
"""

from __future__ import annotations

import argparse
import gc
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

import packed_rows
import torch
from ballast import Ballast, started
from provenance import machine_of, versions_of
from rows import write
from stream_files import Results
from stream_jobs import (
    EVERY,
    FULL,
    MINE,
    MINI,
    OURS,
    PACKED,
    PEERS,
    RESIDENT,
    Job,
    Model,
    Run,
    building,
    models_of,
    rows_of,
    runs_of,
)
from stream_peers import MARGINS, takes_budget
from stream_rows import StreamRow, finished, in_order, read_rows, summary, table
from stream_weights import Shelf

from tightfit.units import GIB, format_bytes, parse_bytes

RESULTS = Path(__file__).parent / "results" / "stream.json"
PACKED_RESULTS = RESULTS.with_name("packed.json")
_LIBRARIES = ("accelerate", "mmgp", "transformers")
_CHUNK = 2 * GIB
_GRACE = 30.0
_PATIENCE = 2.5
"""A process may take so much longer than expected, and some seconds more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows, each written when it is done, and print a table."""
    about = __doc__.splitlines()[0] if __doc__ else ""
    its = parser(about, who=(OURS, *PEERS), results=RESULTS)
    its.add_argument("--packed", type=Path, help="run the rows of packed.py too, written to this")
    options = its.parse_args(arguments)
    if options.row:
        _one_process(options)
        return 0
    if options.packed:
        options.who = tuple(dict.fromkeys((*options.who, PACKED)))
    jobs = [job for job in (MINI if options.cpu else FULL) if fnmatch(job.name, options.only)]
    raw, packed = options.output, options.packed
    if not options.cpu:
        raw = raw or RESULTS
        packed = packed or (PACKED_RESULTS if PACKED in options.who else None)
    return measure(options, jobs, raw=raw, packed=packed)


def measure(
    options: argparse.Namespace, jobs: Sequence[Job], *, raw: Path | None, packed: Path | None
) -> int:
    """Run the rows of `jobs` that `options` ask for, each written to its files when it is done.

    Args:
        options: of `parser`.
        jobs: in the order in which they run.
        raw, packed: files of everything but packed streaming, and of the jobs that it has.
    """
    print(plan(jobs, options.who), file=sys.stderr)
    if options.plan:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, jobs, Path(folder), raw, packed)
        bench.run()
    rows = in_order(bench.rows, jobs)
    print(table(rows))
    if OURS in options.who:
        print(summary([job for job in jobs if job.raw], rows))
    if PACKED in options.who:
        print("packed:")
        ours = packed_rows.renamed(rows, jobs)
        print(summary([job for job in jobs if job.packed], ours, packed_rows.verdicts))
    for run in bench.late:
        print(f"no time for {run.job.name} | {run.who}", file=sys.stderr)
    return 0 if bench.rows else 1


def wanted(jobs: Sequence[Job], who: Sequence[str]) -> list[Run]:
    """The rows of one network that are asked for."""
    return [run for run in runs_of(tuple(jobs)) if run.who in who]


def plan(jobs: Sequence[Job], who: Sequence[str]) -> str:
    """What will be run, and the seconds that are expected of it."""
    lines, total = [], 0.0
    for network, each in groupby(jobs, key=lambda job: job.model.network):
        group = list(each)
        runs, seconds = wanted(group, who), building(group)
        lines.append(f"{seconds:6.0f} s  {network}: on the free card")
        lines += [
            f"{run.seconds:6.0f} s  {run.job.name} | {run.who}"
            + (", if time is left" if run.extra else "")
            for run in runs
        ]
        total += seconds + sum(run.seconds for run in runs if not run.extra)
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
        raw, packed: results files, of all rows but packed streaming, and of its jobs; None is none.
        rows: so far.
        late: that there was no time for.
    """

    options: argparse.Namespace
    jobs: Sequence[Job]
    folder: Path
    raw: Path | None = None
    packed: Path | None = None
    rows: list[StreamRow] = field(default_factory=list)
    late: list[Run] = field(default_factory=list)

    def run(self) -> None:
        """Network by network; the second process lives as long as this."""
        self._end: float = time.monotonic() + self.options.seconds
        if self.options.touch:
            touch(parse_bytes(self.options.touch))
        self._files = [Results.raw(self.raw, EVERY)] if self.raw else []
        self._files += [Results.packed(self.packed, EVERY)] if self.packed else []
        models = [list(group) for _, group in groupby(self.jobs, key=lambda job: job.model.network)]
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
            building(jobs)
            + sum(run.seconds for run in wanted(jobs, self.options.who) if not run.extra)
            for jobs in models
        )

    def _network(self, jobs: Sequence[Job], ballast: Ballast | None, later: float) -> None:
        """Everything about one network."""
        model, runs = jobs[0].model, wanted(jobs, self.options.who)
        seconds = building(jobs)
        if self._left() < seconds:
            self.late += runs
            return
        folder = self.folder / model.network
        folder.mkdir()
        shelf = Shelf.open(folder)
        try:
            own = [run for run in runs if model.alone and run.who in MINE]
            seconds += sum(run.seconds for run in own)
            what = [RESIDENT, *(run.label for run in own)]
            for row in (found := self._process(what, models_of(jobs), shelf, ballast, seconds)):
                names = [job.name for job in jobs if job.model.title == row.job]
                of_all = row.who == RESIDENT
                self._keep([replace(row, job=name) for name in names] if of_all else [row])
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
                [run.who, run.job.name], [run.job.model], shelf, ballast, run.seconds, margin
            )
            self._keep(found)
            short = any("OutOfMemoryError" in row.note for row in found)
            if not short or self._left() < run.seconds + rest:
                return

    def _process(
        self,
        what: Sequence[str],
        models: Sequence[Model],
        shelf: Shelf,
        ballast: Ballast | None,
        seconds: float,
        margin: int = MARGINS[0],
    ) -> list[StreamRow]:
        """Run it, killed when it takes much too long; the rows that it wrote."""
        part = shelf.list.with_name("rows.json")
        part.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--row", *what]
        command += ["--model", *(model.title for model in models)]
        command += ["--folder", str(part.parent), "--shelf", str(shelf.file)]
        command += ["--margin", str(margin), "--who", ",".join(self.options.who)]
        command += ["--cpu"] if self.options.cpu else []
        command += ["--traced"] if self.options.traced else []
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
        there = {(row.who, row.job) for row in found}
        missing = [pair for pair in rows_of(what) if pair not in there]
        return [
            *found,
            *(StreamRow(name, who, completed=False, note=ended) for who, name in missing),
        ]

    def _keep(self, rows: Sequence[StreamRow]) -> None:
        """Beside the others, and in the file."""
        fresh = {(row.job, row.who) for row in rows}
        others = [row for row in self.rows if (row.job, row.who) not in fresh]
        self.rows = finished([*others, *rows])
        for row in rows:
            took = row.note if row.seconds is None else f"{row.seconds:.4f} s a step"
            print(f"{row.job} | {row.who}: {took}", file=sys.stderr, flush=True)
        versions = getattr(self, "_versions", None)
        if versions is not None:
            for file in self._files:
                file.keep(self.rows, machine=self._machine, versions=versions)

    def _left(self) -> float:
        return self._end - time.monotonic()


def parser(about: str, *, who: Sequence[str], results: Path) -> argparse.ArgumentParser:
    """Options of this benchmark and of `packed.py`; `who` runs by default."""
    parser = argparse.ArgumentParser(description=about)
    whos = ",".join((*MINE, *PEERS))
    parser.add_argument("--cpu", action="store_true", help="small networks on virtual cards")
    parser.add_argument("--only", default="*", help="jobs such as 'flux.1-dev *'")
    parser.add_argument("--who", type=_names, default=tuple(who), help=f"some of {whos}")
    parser.add_argument("--seconds", type=float, default=560, help="no row starts later")
    parser.add_argument("--touch", help="bytes of host memory to take and give back first")
    parser.add_argument("--traced", action="store_true", help="say where the time of a step goes")
    parser.add_argument("--plan", action="store_true", help="print what would be run, and stop")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {results.name}")
    parser.add_argument("--ballast", help=argparse.SUPPRESS)
    for name in ("--model", "--row"):
        parser.add_argument(name, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shelf", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--margin", type=int, default=MARGINS[0], help=argparse.SUPPRESS)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= {*MINE, *PEERS}:
        raise argparse.ArgumentTypeError(f"`{text}` is not some of {','.join((*MINE, *PEERS))}")
    return names


def _one_process(options: argparse.Namespace) -> None:
    """``--row WHO JOB…``; ``resident`` has labels of rows that run in the same process."""
    from stream_run import Place, built, come_home, resident, row_of, shelve

    who = options.row[0]
    jobs = {job.name: job for job in EVERY}
    ballast = None
    if options.ballast:
        answers, orders = map(int, options.ballast.split(","))
        ballast = Ballast(answers, orders)
    shelf = Shelf(options.shelf, options.folder / "shelf.json")
    place = Place(ballast, options.folder, shelf, traced=options.traced)
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
        models = [model for model in models_of(EVERY) if model.title in options.model]
        network = built(models[0], card)
        for model in models:
            keep(resident(place, model, card, network))
        module = network.module
        del network
        if not models[0].alone:
            shelve(place, module, card)
            return
        come_home(module, card)
    for each, name in rows_of(options.row):
        keep(row_of(place, jobs[name], each, options.margin, module))
        gc.collect()


if __name__ == "__main__":
    sys.exit(main())
