"""Whole pipelines on cards that are too small for them, end to end, against what else there is.

    python bench/pipeline.py                              # writes results/pipeline.json
    python bench/pipeline.py --only 'flux.1-dev *'        # some jobs, merged into the file
    python bench/pipeline.py --who tightfit               # no peers
    python bench/pipeline.py --cpu                        # the same steps, no GPU

True sizes, random weights, and text encoders that run on seeded words. The weights of a pipeline
are drawn once, into memory that all its rows map as they would files in the page cache; FLUX.2 is
too large for a second copy on the host, so its rows draw their own, and no peer runs beside. Each
row has a process of its own: its context is made, a second process takes all of the card but the
named size, and only then the pipeline is set up. The first call is timed apart; then one call that
ends with pictures counts. Side by side in each job:

``resident``       on the free card; what a step takes there, C, is told by one more call
``tightfit``       `tightfit.fit` with the named size as its budget
``model-offload``  diffusers' `enable_model_cpu_offload`
``group-offload``  its `enable_group_offload` by leaf, with a stream of copies
``mmgp``           profile 4, everything pinned, told what is free beside activations, less 1 GiB;
                   less 3 GiB, in another process, where that runs out of memory

A text encoder by itself has weights that are stored in bf16, or in fp8 with scales, and is used in
float32 all the same: `tightfit.fit(..., compute="float32")`. Beside it:

``resident``       converted to float32 wholly, on the free card
``to-float32``     the same on the small one
``group-offload``  the same on the host, and offloaded from there, where the host has room for it

A failure is a row with a note. A row is ``link-bound`` where a step's copies alone, B/W, take
longer than C: B is what of the denoiser the named size does not hold beside its activations, times
the calls in a step, and W the link of that process. `limit_seconds` is the resident call with the
steps as long as the larger of the two; copying text encoders is not in it. What is stored in fp8 is
resident by `tightfit` too, since nothing else converts it.
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

from ballast import Ballast, started
from pipeline_jobs import EVERY, FULL, MARGINS, MINI, RESIDENT, Job, runs_of
from pipeline_peers import takes_margin
from pipeline_rows import PipelineRow, compared, in_order, read_rows, summary, table
from pipeline_weights import Store
from provenance import machine_of, versions_of
from rows import write
from stream import touch

from tightfit.card import open_card
from tightfit.units import parse_bytes

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
_LIBRARIES = ("accelerate", "mmgp", "transformers")
_GRACE = 30.0
_PATIENCE = 2.5
"""A process may take so much longer than expected, and some seconds more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows, each written when it is done, and print a table."""
    options = _parser().parse_args(arguments)
    known = MINI if options.cpu else FULL
    if options.row:
        _one_process(options, next(job for job in known if job.name == options.row[1]))
        return 0
    jobs = [job for job in known if fnmatch(job.name, options.only)]
    if not jobs:
        print(f"no job is called {options.only}", file=sys.stderr)
        return 1
    print(plan(jobs, options.who), file=sys.stderr)
    if options.plan:
        return 0
    if options.touch:
        touch(parse_bytes(options.touch))
    output = options.output or (None if options.cpu else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, jobs, Path(folder), output)
        bench.run()
    print(table(bench.rows))
    print(summary(jobs, bench.rows))
    return 0 if bench.rows else 1


def plan(jobs: Sequence[Job], who: Sequence[str]) -> str:
    """What will be run, and the seconds that are expected of it."""
    lines, total = [], 0.0
    for _, each in groupby(jobs, key=lambda job: job.model):
        group = list(each)
        model = group[0].model
        if not model.alone:
            lines.append(f"{model.build_seconds:6.0f} s  {model.title}: weights are drawn")
            total += model.build_seconds
        for job, one in runs_of(group, who):
            lines.append(f"{model.seconds(one):6.0f} s  {job.name} | {one}")
            total += model.seconds(one)
    return "\n".join([*lines, f"{total:6.0f} s  in all"])


@dataclass
class Bench:
    """All rows of one call.

    Attributes:
        options: of the command line.
        jobs: that are asked for.
        folder: for what processes tell one another.
        output: the results file, None for none.
        rows: so far.
    """

    options: argparse.Namespace
    jobs: Sequence[Job]
    folder: Path
    output: Path | None
    rows: list[PipelineRow] = field(default_factory=list)

    def run(self) -> None:
        """Model by model; the second process lives as long as this."""
        self._end: float = time.monotonic() + self.options.seconds
        ballast: Ballast | None = None
        process: subprocess.Popen[bytes] | None = None
        if not self.options.cpu:
            process, ballast = started()
        try:
            for _, each in groupby(self.jobs, key=lambda job: job.model):
                self._model(list(each), ballast)
        finally:
            if process is not None:
                process.kill()

    def _model(self, jobs: Sequence[Job], ballast: Ballast | None) -> None:
        """Its weights once, then its rows."""
        model, runs = jobs[0].model, runs_of(jobs, self.options.who)
        if self._left() < model.build_seconds:
            print(f"no time for {model.title}", file=sys.stderr)
            return
        folder = self.folder / model.title
        folder.mkdir()
        store = None if model.alone else Store.open(folder)
        try:
            if store is not None:
                store.put(f"random:{model.spec}", model.weights, only=model.part)
            for job, who in runs:
                if self._left() < 0.7 * model.seconds(who):
                    print(f"no time for {job.name} | {who}", file=sys.stderr)
                    continue
                found = self._process(job, who, folder, store, ballast)
                if takes_margin(who) and _was_short(found) and self._left() > model.seconds(who):
                    found = self._process(job, who, folder, store, ballast, margin=MARGINS[1])
                same = jobs if who == RESIDENT else [job]
                self._keep([replace(found, job=each.name) for each in same])
        finally:
            if store is not None:
                store.close()

    def _process(
        self,
        job: Job,
        who: str,
        folder: Path,
        store: Store | None,
        ballast: Ballast | None,
        *,
        margin: int = MARGINS[0],
    ) -> PipelineRow:
        """Run it, killed when it takes much too long; the row that it wrote."""
        part = folder / "row.json"
        part.unlink(missing_ok=True)
        expected = job.model.seconds(who)
        limit = max(10.0, min(_PATIENCE * expected, self._left()) + _GRACE)
        command = [sys.executable, __file__, "--row", who, job.name, "--folder", str(folder)]
        command += ["--seconds", f"{limit - _GRACE:.0f}", "--margin", str(margin)]
        command += ["--cpu"] if self.options.cpu else []
        command += ["--commit", self.options.commit] if self.options.commit else []
        descriptors = []
        if store is not None:
            command += ["--store", str(store.file)]
            descriptors.append(store.file)
        if ballast is not None:
            command += ["--ballast", f"{ballast.answers},{ballast.orders}"]
            descriptors += [ballast.answers, ballast.orders]
        start = time.monotonic()
        try:
            done = subprocess.run(command, pass_fds=descriptors, timeout=limit, check=False)
            ended = "" if done.returncode == 0 else f"its process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limit:.0f} s"
        if ballast is not None:
            ballast.leave(None)
        took = time.monotonic() - start
        print(f"{job.name} | {who}: {took:.0f} s, {expected:.0f} expected {ended}", file=sys.stderr)
        if part.exists():
            (row,), self._machine, self._versions = read_rows(part)
            return row
        return PipelineRow(job.name, who, completed=False, note=ended)

    def _keep(self, rows: Sequence[PipelineRow]) -> None:
        """Beside the others, and in the file."""
        fresh = {(row.job, row.who) for row in rows}
        others = [row for row in self.rows if (row.job, row.who) not in fresh]
        names = [job.name for job in (*FULL, *MINI)]
        self.rows = in_order(compared([*others, *rows]), names)
        versions: dict[str, Any] | None = getattr(self, "_versions", None)
        if self.output is None or versions is None:
            return
        kept: list[PipelineRow] = []
        if self.output.exists():
            earlier, _, then = read_rows(self.output)
            mine = {row.job for row in self.rows}
            mark = "" if then == versions else f"measured apart, at commit {then.get('commit')}"
            kept = [
                row if mark in row.note else row.said(mark)
                for row in earlier
                if row.job not in mine
            ]
        every = in_order([*kept, *self.rows], names)
        write(self.output, every, machine=self._machine, versions=versions)

    def _left(self) -> float:
        return self._end - time.monotonic()


def _was_short(row: PipelineRow) -> bool:
    """Whether it failed for memory of the card."""
    return not row.completed and "out of memory" in row.note.lower()


def _one_process(options: argparse.Namespace, job: Job) -> None:
    """``--row WHO JOB``: it is written to the folder."""
    from pipeline_place import Place
    from pipeline_run import row_of

    deadline = time.monotonic() + options.seconds
    ballast = None
    if options.ballast:
        answers, orders = map(int, options.ballast.split(","))
        ballast = Ballast(answers, orders)
    store = None
    if options.store is not None:
        store = Store(options.store, options.folder / "store.json")
    place = Place(ballast, options.folder, store, options.margin)
    row = row_of(place, job, options.row[0], deadline)
    versions = versions_of(options.commit)
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    machine = machine_of(open_card("virtual:64GiB" if options.cpu else "cuda:0"))
    write(options.folder / "row.json", [row], machine=machine, versions=versions)
    took = row.note if row.seconds is None else f"{row.seconds:.3f} s; {row.note}"
    print(f"{row.job} | {row.who}: {took}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="small pipelines on virtual cards")
    parser.add_argument("--only", default="*", help="jobs such as 'flux.1-dev *'")
    parser.add_argument("--who", type=_names, default=EVERY, help=f"some of {','.join(EVERY)}")
    parser.add_argument("--seconds", type=float, default=560, help="no row starts later")
    parser.add_argument("--touch", help="bytes of host memory to take and give back first")
    parser.add_argument("--plan", action="store_true", help="print what would be run, and stop")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--margin", type=int, default=MARGINS[0], help=argparse.SUPPRESS)
    parser.add_argument("--ballast", help=argparse.SUPPRESS)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(EVERY):
        raise argparse.ArgumentTypeError(f"`{text}` is not some of {','.join(EVERY)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
