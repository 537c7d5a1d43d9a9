"""VAEs on less memory than a whole run takes, against the whole run and against tiles.

    python bench/vae.py                                  # writes results/vae.json
    python bench/vae.py --only 'flux-vae decode *'       # some jobs, merged into the file
    python bench/vae.py --who whole,tightfit             # no peers
    python bench/vae.py --cpu                            # the same steps, no GPU

Random weights, and inputs that are smooth as latents and pictures are. Side by side in each job:

``whole``                one call on the free card: C, and what errors are taken from
``tightfit``             under its budget, weights included; its own call comes first and plans,
                         then what that does between two host tensors is timed
``diffusers-tiled``      diffusers' own tiles, by its defaults
``diffusers-tiled-512``  likewise, of 512 pixels

All of them take a tensor on the host and give one on the host, and find the weights on the card,
where they are among the peaks. A first call does not count, then the median of three does; of a
peer that takes longer than 8 s, the first call counts alone. At the end the whole runs in float32
(without TF32), which says how far from it the whole and `tightfit` are. One more call of ours is
looked at by a profiler: its copies, over the link W of the same process, give the limit
max(C, B/W).

Each job has a process of its own, which writes each row as it comes, and each row has a thread of
its own, since cuDNN remembers what it chose. What was learnt earlier, elsewhere, helps no row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from provenance import machine_of, versions_of
from rows import write
from vae_calls import CALLS
from vae_jobs import EVERY, FULL, MINI, Job
from vae_rows import VaeRow, beside, in_order, read_rows, summary, table
from vae_run import Bench

from tightfit.card import open_card

RESULTS = Path(__file__).parent / "results" / "vae.json"
_GRACE = 30.0
_PATIENCE = 1.5
"""A job may take so much longer than expected, and some seconds more."""
_LOOK = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every job in a process of its own, write their rows as they come, print a table."""
    options = _parser().parse_args(arguments)
    known = MINI if options.cpu else FULL
    if options.job:
        _one_job(options, next(job for job in known if job.name == options.job))
        return 0
    jobs = [job for job in known if fnmatch(job.name, options.only)]
    if not jobs:
        print(f"no job is called {options.only}", file=sys.stderr)
        return 1
    output = options.output or (None if options.cpu else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options, jobs, Path(folder), output)
        rows = runs.all()
    print(table(rows))
    print(summary(jobs, rows))
    return 0 if rows else 1


@dataclass
class Runs:
    """The jobs of one call, one after another.

    Attributes:
        options: of the command line.
        jobs: that are asked for.
        folder: for what processes write.
        output: the results file, None for none.
        rows: so far.
    """

    options: argparse.Namespace
    jobs: Sequence[Job]
    folder: Path
    output: Path | None
    rows: list[VaeRow] = field(default_factory=list)

    def all(self) -> list[VaeRow]:
        """Run them, each within what those behind it leave of the time."""
        end = time.monotonic() + self.options.seconds
        for at, job in enumerate(self.jobs):
            later = sum(each.seconds for each in self.jobs[at + 1 :])
            left = end - time.monotonic()
            seconds = min(max(job.seconds, left - later), _PATIENCE * job.seconds, left)
            if left < job.seconds / 2:
                print(f"no time for {job.name}", file=sys.stderr)
                continue
            self._job(job, seconds)
        return self.rows

    def _job(self, job: Job, seconds: float) -> None:
        """One process, whose rows are kept as they come; what it did not get to is one too."""
        start = time.monotonic()
        limit = seconds + _GRACE
        part = self.folder / f"{job.name}.json"
        with _started(self.options, job, part, seconds) as process:
            seen = None
            while (code := _ended(process)) is None and time.monotonic() - start < limit:
                if part.exists() and (now := part.stat().st_mtime_ns) != seen:
                    seen = now
                    self._keep(read_rows(part)[0], part)
        words = {None: f"stopped after {limit:.0f} s", 0: "done"}
        ended = words.get(code, f"its process ended with {code}")
        found = read_rows(part)[0] if part.exists() else []
        there = {row.who for row in found}
        found += [
            VaeRow(job.name, who, completed=False, note=ended)
            for who in EVERY
            if who in self.options.who and who not in there
        ]
        self._keep(found, part)
        took = time.monotonic() - start
        told = f"{took:.0f} s, {job.seconds:.0f} expected, {ended}"
        print(f"{job.name}: {told}", file=sys.stderr, flush=True)

    def _keep(self, found: Sequence[VaeRow], part: Path) -> None:
        """Beside the others, and in the file."""
        if part.exists():
            _, self._machine, self._versions = read_rows(part)
        fresh = {(row.job, row.who) for row in found}
        others = [row for row in self.rows if (row.job, row.who) not in fresh]
        self.rows = in_order([*others, *found], [each.name for each in self.jobs])
        machine: dict[str, Any] | None = getattr(self, "_machine", None)
        if self.output is not None and machine is not None:
            self._write(self.output, machine)

    def _write(self, output: Path, machine: dict[str, Any]) -> None:
        kept: list[VaeRow] = []
        if output.exists():
            earlier, _, then = read_rows(output)
            kept = beside(earlier, self.rows, then=then, now=self._versions)
        rows = in_order([*kept, *self.rows], [job.name for job in (*FULL, *MINI)])
        write(output, rows, machine=machine, versions=self._versions)


@contextmanager
def _started(
    options: argparse.Namespace, job: Job, part: Path, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that measures one job; on the way out it ends."""
    command = [sys.executable, __file__, "--job", job.name, "--output", str(part)]
    command += ["--who", ",".join(options.who), "--seconds", f"{seconds:.0f}"]
    command += ["--cpu"] if options.cpu else []
    command += ["--untraced"] if options.untraced else []
    command += ["--commit", options.commit] if options.commit else []
    with tempfile.TemporaryDirectory() as learnt:
        environment = {**os.environ, "XDG_CACHE_HOME": learnt}
        with subprocess.Popen(command, env=environment) as process:
            try:
                yield process
            finally:
                process.kill()


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, None where it still runs after a while."""
    try:
        return process.wait(timeout=_LOOK)
    except subprocess.TimeoutExpired:
        return None


def _one_job(options: argparse.Namespace, job: Job) -> None:
    """All rows of this process's job; everything is written after each row."""
    deadline = time.monotonic() + options.seconds
    card = open_card(job.card if options.cpu else "cuda:0")
    machine, versions = machine_of(card), versions_of(options.commit)
    bench = Bench(
        job,
        card,
        options.who,
        calls=1 if options.cpu else CALLS,
        deadline=deadline,
        trace=not options.untraced,
    )
    rows: dict[str, VaeRow] = {}
    for row in bench.rows():
        again = row.who in rows
        rows[row.who] = row
        write(options.output, list(rows.values()), machine=machine, versions=versions)
        took = "nothing" if row.seconds is None else f"{row.seconds:.3f} s"
        words = f"{row.fp32_rms_error} from float32" if again else f"{took}; {row.note}"
        print(f"{row.job} | {row.who}: {words}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="small networks on a virtual card")
    parser.add_argument("--only", default="*", help="jobs such as 'flux-vae decode *'")
    parser.add_argument("--who", type=_names, default=EVERY, help=f"some of {','.join(EVERY)}")
    parser.add_argument("--seconds", type=float, default=470, help="in all, about")
    parser.add_argument("--untraced", action="store_true", help="no call under a profiler")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(EVERY):
        raise argparse.ArgumentTypeError(f"`{text}` is not some of {','.join(EVERY)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
