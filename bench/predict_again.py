"""Predict what `predict.py` measured once more, from what its small runs moved; needs no GPU.

    python bench/predict.py --keep KEPT        # on the GPU: writes results/predict.json, and KEPT
    python bench/predict_again.py KEPT         # anywhere: the same table, as predicted by now
    python bench/predict_again.py KEPT --only '*expandable'

What a change of a rule does to every job is seen in half a minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import accumulate
from pathlib import Path
from typing import Any

import predict_bars
from held_card import Resident
from predict import RESULTS
from predict_bars import CALIBRATED, UNCALIBRATED, summary
from predict_cases import DTYPES, EVERY, FULL, MINI, Case
from predict_run import left_behind, predicted
from rows import Row, read

from tightfit.adapters import find_parts, outline_part, parse_dtype
from tightfit.plan.slack import replay
from tightfit.run.calibrating import Watched, calibrated
from tightfit.weigh import Kind, identity, walk, weights
from tightfit.weigh.calibration import Calibration
from tightfit.weigh.dry import DryRun
from tightfit.weigh.observed import learn
from tightfit.weigh.workspace import CUDA, Workspaces


@dataclass(frozen=True)
class Kept:
    """What the small runs under one allocator left in a folder."""

    moves: Mapping[str, Sequence[int]]
    entries: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, allocator: str) -> Kept:
        """A file that is not there is an empty one: there is no history under ``async``."""
        moves, learnt = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            for path in (folder / f"{name}-{allocator}.json" for name in ("moves", "calibrations"))
        )
        return cls(moves, learnt.get("entries", {}))

    def calibration(
        self, case: Case, allocator: str, dry: DryRun, table: Workspaces
    ) -> Calibration:
        """What is learnt from them by now; `dry` is of the small size."""
        key = f"random:{case.network}|{case.stage}|{DTYPES[case.dtype]}|"
        seen = [
            run for name, one in self.entries.items() if name.startswith(key) for run in one["seen"]
        ]
        moves = self.moves.get(case.job(case.small, allocator))
        measured = seen[-1][2] if seen else max(accumulate(moves or ()), default=None)
        watched = Watched(measured, None, None, None if moves is None else learn(dry, moves))
        samples = case.small.samples
        return calibrated(Calibration(), dry, watched, samples=samples, table=table)


def outlined(case: Case) -> Resident:
    """The network of `case` as `held_card.reside` lays it on a card, but for its values."""
    (part,) = find_parts(f"random:{case.network}")
    dtype = parse_dtype(DTYPES[case.dtype])
    assert dtype is not None
    outline = outline_part(part, dtype=dtype)
    sizes = {identity(held.tensor): held.tensor.nbytes for held in weights(outline)}
    tables = tuple(held.tensor.nbytes for held in walk(outline) if held.kind is Kind.ATTRIBUTE)
    return Resident(part, dtype, outline, outline, tuple(sizes.values()), tables)


def again(
    rows: Sequence[Row], folder: Path, *, cases: Sequence[Case] = FULL, table: Workspaces = CUDA
) -> Iterator[Row]:
    """Those of `rows` that are of `cases`, as they are predicted by now; see `Bench.table`."""
    known = {row.job: row for row in rows if row.who == CALIBRATED}
    kept = {allocator: Kept.read(folder, allocator) for allocator in EVERY}
    for case in cases:
        jobs = [(*job, name) for name in EVERY for job in case.under(name) if job[0] in known]
        if not jobs:
            continue
        network = outlined(case)
        small = network.dry(case.stage, case.small)
        runs = {size: network.dry(case.stage, size) for _, size, _ in jobs}
        for job, size, name in jobs:
            row, run = known[job], runs[size]
            learnt = kept[name].calibration(case, name, small, table)
            held = [row.library_workspace_bytes or 0, *network.sizes]
            loaded = replay((), name, held=[one for one in held if one]).allocated
            held += left_behind((row.baseline_bytes or loaded) - loaded, network.tables)
            scratch = replace(table, learnt=learnt.shares)
            informed = predicted(run, name, held=held, workspaces=scratch, calibration=learnt)
            held = [table.fixed, *network.sizes, *network.tables]
            plain = predicted(run, name, held=held, workspaces=table)
            for who, figures in ((CALIBRATED, informed), (UNCALIBRATED, plain)):
                sizes = (figures.allocated, figures.reserved)
                row = replace(row, predicted_bytes=sizes[0], predicted_reserved_bytes=sizes[1])
                yield replace(row, who=who)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what `predict.py` prints, with measured figures from its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kept", type=Path, help="the folder that `predict.py --keep` wrote")
    parser.add_argument("--measured", type=Path, default=RESULTS, help="default: predict.json")
    parser.add_argument("--only", default="*", help="jobs such as 'predict flux-vae decode *'")
    parser.add_argument("--cpu", action="store_true", help="the networks of a rehearsal")
    options = parser.parse_args(arguments)
    rows = [row for row in read(options.measured)[0] if fnmatch(row.job, options.only)]
    cases, table = (MINI, replace(CUDA, fixed=0)) if options.cpu else (FULL, CUDA)
    found = list(again(rows, options.kept, cases=cases, table=table))
    print(predict_bars.table(found))
    print(summary(found))
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
