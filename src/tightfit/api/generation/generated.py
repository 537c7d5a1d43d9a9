"""The report on what a pipeline made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightfit.api.generation.making import Generated, Making, as_attempt
from tightfit.api.generation.timeline import DENOISE, Timeline
from tightfit.api.memory import Memory
from tightfit.plan.stage import StagePlan
from tightfit.report.record import Report
from tightfit.run.ladder import Attempt
from tightfit.run.rungs import EVICT


@dataclass(frozen=True)
class SoFar:
    """What was before the job.

    Attributes:
        tries: attempts that each network had made.
        codings: those of the VAE.
        allocated: bytes on the card.
        started: on the clock of `time.perf_counter`.
    """

    tries: Mapping[str, int]
    codings: tuple[Attempt, ...]
    allocated: int | None
    started: float


def describe(
    making: Making,
    memory: Memory,
    model: Mapping[str, Any],
    made: Sequence[Generated],
    so_far: SoFar,
) -> Report:
    """For a job that was done, perhaps in part.

    Args:
        making: what was done.
        memory: that could be used.
        model: what ran.
        made: each picture or clip.
        so_far: what was before.
    """
    codings = so_far.codings
    coded = [each for each in making.fitted.codings if all(each is not old for old in codings)]
    decoded = [each for each in coded if each.stage == "decode" and each.outcome == "ok"]
    timeline = making.timeline
    peaks = [timeline.peak_allocated, *(each.peak_bytes for each in coded)]
    reserved = [timeline.peak_reserved, *(each.peak_reserved_bytes for each in coded)]
    errors = [each for each in made if each.error is not None]
    exact = all(each.exact for each in decoded) if decoded else None
    return Report(
        **_common(memory, model, so_far.allocated, so_far.started),
        input={"prompts": list(dict.fromkeys(each.prompt for each in made))},
        **_planned(timeline.plan),
        attempts=[
            *making.attempts,
            *making.network_attempts(so_far.tries),
            *(as_attempt(each) for each in coded),
        ],
        peak_bytes=_highest(peaks),
        peak_reserved_bytes=_highest(reserved),
        exact=exact,
        error_bound=_bound(decoded) if decoded else None,
        adjusted=list(making.adjusted),
        warnings=_warnings(decoded),
        output={
            "items": [
                {
                    "prompt": each.prompt,
                    "seed": each.seed,
                    "path": None if each.path is None else str(each.path),
                    "settings": dict(each.settings),
                    "error": each.error,
                }
                for each in made
            ],
        },
        stages=_stages(timeline),
        error=f"{len(errors)} of {len(made)} failed: {errors[0].error}" if errors else None,
    )


def failed(
    error: Exception, making: Making, memory: Memory, model: Mapping[str, Any], so_far: SoFar
) -> Report:
    """For a job that made nothing."""
    report = describe(making, memory, model, (), so_far)
    climbed = [each for each in getattr(error, "attempts", ()) if isinstance(each, Attempt)]
    known = [*report.attempts]
    known += [entry for entry in map(as_attempt, climbed) if entry not in known]
    return replace(report, attempts=known, error=str(error), exact=None, error_bound=None)


def refused(
    error: Exception, memory: Memory, model: Mapping[str, Any], before: int | None, started: float
) -> Report:
    """For a job that was not begun."""
    return Report(**_common(memory, model, before, started), input={}, error=str(error))


def _common(
    memory: Memory, model: Mapping[str, Any], before: int | None, started: float
) -> dict[str, Any]:
    return {
        "command": "generate",
        "model": model,
        "card": {
            "name": memory.card.name,
            "kind": memory.card.kind,
            "allocator": memory.card.allocator,
            "total_bytes": memory.card.read().total,
            "vram_mode": memory.mode,
        },
        "budget_bytes": memory.budget,
        "before_bytes": before,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _planned(plan: StagePlan | None) -> dict[str, Any]:
    """The books of one call of the denoiser, the last time that its weights were placed."""
    if plan is None:
        return {}
    lines = {
        name: {"bytes": figure.bytes, "source": figure.source}
        for name, figure in plan.ledger.lines.items()
    }
    peak = {"fixed_bytes": None, "slope": None, "peak_bytes": plan.peak_allocated}
    return {"ledger": lines, "estimate": {**peak, "source": "the plan of a denoising step"}}


def _stages(timeline: Timeline) -> list[dict[str, Any]]:
    found = []
    for stage, seconds in timeline.seconds.items():
        entry: dict[str, Any] = {"stage": stage, "seconds": round(seconds, 3)}
        if stage == DENOISE:
            entry["steps"] = timeline.steps
            entry["seconds_per_step"] = timeline.seconds_per_step
            entry["limit_seconds"] = timeline.limit_seconds
            entry["binds"] = None if timeline.pace is None else timeline.pace.binds
        found.append(entry)
    return found


def _bound(decoded: Sequence[Attempt]) -> float | None:
    """The worst; None where one is not known."""
    bounds = [
        0.0 if each.rung in ("whole", EVICT) and not each.refusals else each.error_bound
        for each in decoded
    ]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _warnings(decoded: Sequence[Attempt]) -> list[str]:
    rungs = dict.fromkeys(each.rung for each in decoded if not each.exact)
    return [f"{rung}: close to a whole decode, but not the same" for rung in rungs]


def _highest(sizes: Sequence[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)
