"""The shipped table: what the known architectures need beside their weights. No torch.

Made by ``tools/activation_table.py`` from dry runs of the true architectures with the measured
scratch of CUDA; see `weigh.workspace` for how near it comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from tightfit.weigh.lines import Line, at_most

_FILE = "activations.json"


@dataclass(frozen=True)
class Needs:
    """What one stage of one architecture needs, as lines over the size of the job.

    Attributes:
        dry: new tensors alone.
        allocated: with the scratch of convolutions.
        reserved: by allocator, what it takes where nothing bounds it.
        least: by allocator, the least limit that it gets by with.
        flops: of one call, as factors of 1, pixels, pixels × frames, and the square of that.
    """

    dry: tuple[Line, ...]
    allocated: tuple[Line, ...]
    reserved: Mapping[str, tuple[Line, ...]]
    least: Mapping[str, tuple[Line, ...]]
    flops: tuple[float, ...]

    def flops_at(self, *, area: int, frames: int = 1, batch: int = 1) -> float:
        """Floating-point operations of one call, a multiply-add as two."""
        terms = (1.0, area, area * frames, (area * frames) ** 2)
        return batch * sum(term * factor for term, factor in zip(terms, self.flops, strict=True))

    def allocated_at(self, *, area: int, frames: int = 1, batch: int = 1) -> int:
        """Bytes."""
        return at_most(self.allocated, area=area, frames=frames, batch=batch)


def needs_of(name: str, stage: str, dtype: str) -> Needs | None:
    """The row of architecture `name` (``flux.1-dev/transformer``); None where there is none.

    ``float16`` needs what ``bfloat16`` does, and ``float32`` at most twice that, which is what is
    told where it has no row of its own.
    """
    row = _rows().get(name, {}).get(stage, {})
    found = row.get("bfloat16" if dtype == "float16" else dtype)
    if found is None and dtype == "float32" and "bfloat16" in row:
        return _doubled(_needs(row["bfloat16"]))
    return None if found is None else _needs(found)


def known_names() -> tuple[str, ...]:
    """The architectures of the table, sorted."""
    return tuple(sorted(_rows()))


def usual_of(name: str) -> tuple[int, int, int] | None:
    """Width, height and frames that architecture `name` is usually asked for."""
    usual = _rows().get(name, {}).get("usual")
    return None if usual is None else (usual[0], usual[1], usual[2])


@cache
def _rows() -> dict[str, Any]:
    text = (resources.files("tightfit.weigh") / _FILE).read_text(encoding="utf-8")
    rows: dict[str, Any] = json.loads(text)["rows"]
    return rows


def _needs(row: Mapping[str, Any]) -> Needs:
    return Needs(
        dry=_lines(row["dry"]),
        allocated=_lines(row["allocated"]),
        reserved={kind: _lines(value) for kind, value in row["reserved"].items()},
        least={kind: _lines(value) for kind, value in row["least"].items()},
        flops=tuple(row["flops"]),
    )


def _doubled(needs: Needs) -> Needs:
    """The same values in twice as many bytes."""

    def twice(lines: tuple[Line, ...]) -> tuple[Line, ...]:
        return tuple(Line(2 * x.fixed, 2 * x.area, 2 * x.samples, x.frames) for x in lines)

    return replace(
        needs,
        dry=twice(needs.dry),
        allocated=twice(needs.allocated),
        reserved={kind: twice(lines) for kind, lines in needs.reserved.items()},
        least={kind: twice(lines) for kind, lines in needs.least.items()},
    )


def _lines(values: list[list[float]]) -> tuple[Line, ...]:
    return tuple(Line(fixed, area, samples, int(frames)) for frames, fixed, area, samples in values)
