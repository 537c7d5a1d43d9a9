"""What is predicted against what is measured: allocated and reserved, for true-size networks.

    python bench/predict.py                                 # writes results/predict.json
    python bench/predict.py --only '*vae decode*'           # some jobs, merged into the file
    python bench/predict.py --cpu                           # the same steps, no GPU

Each network lies on the card with random weights. For each of its stages one small run is watched;
from that, and from dry runs on the meta device, the other sizes are predicted, then run (up to
three times where that is quick, and the largest peaks count). Side by side in each job:

``tightfit``               calibrated on the small run of this very process, and on nothing else
``tightfit-uncalibrated``  the table of scratch alone

The allocator is chosen before CUDA starts, so each has a process of its own, which writes its rows
as they come. A job that fails is a row with a note.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from predict_bars import CALIBRATED, summary, table
from predict_cases import EVERY, FULL, MINI
from predict_run import Bench
from provenance import machine_of, versions_of
from rows import Row, read, write

from tightfit.card import Card, open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.settings import ALLOCATOR_VARIABLES, ALLOCATORS
from tightfit.weigh.calibration import Calibrations
from tightfit.weigh.workspace import CUDA

RESULTS = Path(__file__).parent / "results" / "predict.json"
_SHARES = {"native": 0.56, "async": 0.22, "expandable": 0.22}
_GRACE = 45.0
"""Seconds that a process has beyond its own: its start, and the job it is in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every allocator in a process of its own, merge their rows, print a table."""
    options = _parser().parse_args(arguments)
    if options.allocator:
        _one_allocator(options)
        return 0
    output = options.output or (None if options.cpu else RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        rows = _every_allocator(options, options.keep or Path(folder), output)
    print(table(rows))
    print(summary(rows))
    return 0 if rows else 1


def _every_allocator(options: argparse.Namespace, folder: Path, output: Path | None) -> list[Row]:
    """All rows; `folder` gets what the processes write, `output` everything after each of them."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    rows: list[Row] = []
    waiting = list(options.allocators)
    while waiting:
        share = _SHARES[waiting[0]] / sum(_SHARES[name] for name in waiting)
        allocator = waiting.pop(0)
        seconds = (end - time.monotonic()) * share
        if seconds <= 0:
            print(f"{allocator}: no time left", file=sys.stderr)
            continue
        part = folder / f"rows-{allocator}.json"
        part.unlink(missing_ok=True)
        ended = _in_a_process(options, allocator, folder, seconds)
        found: list[Row] = []
        if part.exists():
            found, machine, versions = read(part)
            rows += found
        print(f"{allocator}: {ended}, {len(found)} rows", file=sys.stderr)
        if output and found:
            kept = _others(output, rows, options, versions)
            write(output, [*kept, *rows], machine=machine, versions=versions)
            part.unlink()
    return rows


def _others(
    output: Path, rows: Sequence[Row], options: argparse.Namespace, versions: dict[str, Any]
) -> list[Row]:
    """Rows of an earlier file that a partial run leaves alone, marked where they are of others."""
    partial = options.only != "*" or set(options.allocators) != set(EVERY)
    if not partial or not output.exists():
        return []
    earlier, _, then = read(output)
    mark = "" if then == versions else f"measured apart, at commit {then.get('commit')}"
    fresh = {row.job for row in rows}
    return [
        row if not mark or mark in row.note else replace(row, note=f"{row.note}; {mark}")
        for row in earlier
        if row.job not in fresh
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="small networks on a virtual card")
    parser.add_argument("--only", default="*", help="jobs such as 'predict flux-vae decode *'")
    parser.add_argument(
        "--allocators", type=_names, default=EVERY, help="some of native,async,expandable"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=440,
        help="no job starts later; in all, the starts included",
    )
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("--keep", type=Path, help="a folder for what was learnt and watched")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(EVERY):
        raise argparse.ArgumentTypeError(f"`{text}` is not some of {','.join(EVERY)}")
    return names


def _in_a_process(options: argparse.Namespace, allocator: str, folder: Path, seconds: float) -> str:
    """Measure under one allocator, killed when it takes much too long; how it ended."""
    command = [sys.executable, __file__, "--allocator", allocator, "--keep", str(folder)]
    command += ["--seconds", f"{seconds:.0f}", "--only", options.only]
    command += ["--cpu"] if options.cpu else []
    command += ["--commit", options.commit] if options.commit else []
    environment = {k: v for k, v in os.environ.items() if k not in ALLOCATOR_VARIABLES}
    environment[ALLOCATOR_VARIABLES[1]] = ALLOCATORS[allocator]
    try:
        ended = subprocess.run(command, env=environment, timeout=seconds + _GRACE, check=False)
    except subprocess.TimeoutExpired:
        return "stopped at its time limit"
    return "done" if ended.returncode == 0 else f"exit code {ended.returncode}"


def _one_allocator(options: argparse.Namespace) -> None:
    """All jobs of this process's allocator; everything is written after each row."""
    deadline = time.monotonic() + options.seconds
    folder, name = options.keep, options.allocator
    learnt = folder / f"calibrations-{name}.json"
    learnt.unlink(missing_ok=True)  # no run is helped by an earlier one
    bench = Bench(
        _card(options),
        MINI if options.cpu else FULL,
        Calibrations(learnt),
        only=options.only,
        deadline=deadline,
        table=replace(CUDA, fixed=0) if options.cpu else CUDA,
    )
    machine, versions = machine_of(bench.card), versions_of(options.commit)
    rows: list[Row] = []
    for row in bench.rows():
        rows.append(row)
        write(folder / f"rows-{name}.json", rows, machine=machine, versions=versions)
        if row.who == CALIBRATED:
            took = row.note if row.seconds is None else f"{row.seconds:.2f} s"
            print(f"{row.job}: {took}", file=sys.stderr, flush=True)
    if bench.late:
        print(f"{name}: no time for {', '.join(bench.late)}", file=sys.stderr)
    if bench.moves:
        (folder / f"moves-{name}.json").write_text(json.dumps(bench.moves), encoding="utf-8")


def _card(options: argparse.Namespace) -> Card:
    """The first CUDA card, or a virtual one of which the table knows most, but not all."""
    if not options.cpu:
        return open_card("cuda:0")
    card = open_card(f"virtual:64GiB,allocator={options.allocator}")
    assert isinstance(card, VirtualCard)
    card.faults.workspace = lambda operator, given: (
        given * 21 // 10 if "convolution" in operator else 0
    )
    if card.allocator == "async":
        setattr(card, "moves", nullcontext)  # noqa: B010 (as on CUDA, where it keeps no history)
    return card


if __name__ == "__main__":
    sys.exit(main())
