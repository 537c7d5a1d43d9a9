"""A gauge that runs the network itself on the meta device, at the size of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tightfit.errors import TightfitError
from tightfit.plan.size import Size
from tightfit.plan.slack import FRAGMENTS, least_reserved, replay
from tightfit.run.planning.gauge import NOTHING_KNOWN, Gauge, TableGauge, Working, scaled
from tightfit.run.planning.steps import Steps
from tightfit.weigh.calibration import Calibration
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.lines import Line, Point, drawn, nearest
from tightfit.weigh.table import Needs
from tightfit.weigh.workspace import NONE, Workspaces, peak_of, sequence

_SIDES = (128, 256, 512)
_CLIPS = ((128, 3), (256, 3), (128, 5))
"""Sides in pixels, and latent frames: enough to tell pixels from frames."""


def sizes_for_lines(steps: Steps, size: Size) -> tuple[Size, ...]:
    """Small sizes that lines can be drawn through, for a job of `size`."""
    sides = [side for side in _SIDES if side <= (steps.largest or side)]
    stills = [steps.cast(Size(side, side)) for side in sides]
    if size.frames == 1 or not steps.frames:
        return tuple(dict.fromkeys(stills))
    clips = [
        steps.cast(Size(side, side, frames=1 + (latents - 1) * steps.frames))
        for side, latents in _CLIPS
    ]
    return tuple(dict.fromkeys((*stills[:2], *clips)))


@dataclass
class DryGauge:
    """Dry runs of one stage of one network.

    Attributes:
        call: makes the call at a size; it runs on the meta device.
        size: of the largest call of the job: what is asked for at this size is run.
        others: tells other sizes (tiles, and what a search looks at), scaled so that it tells
            `size` as it was seen; None is lines through runs at `sizes`.
        sizes: smaller ones; where there are none, every size that is asked for is run.
        workspaces: the scratch inside operators.
        calibration: what real runs measured.
        problem: why a run failed, if one did: then nothing is predicted.
    """

    call: Callable[[Size], Callable[[], object]]
    size: Size
    others: Gauge | None = None
    sizes: tuple[Size, ...] = ()
    workspaces: Workspaces = NONE
    calibration: Calibration = field(default_factory=Calibration)
    problem: str | None = None
    _runs: dict[Size, DryRun | None] = field(default_factory=dict)
    _told: dict[tuple[Size, str], Working] = field(default_factory=dict)
    _lines: dict[str, Gauge | None] = field(default_factory=dict)

    def at(self, size: Size, *, allocator: str) -> Working:
        """At `size`; a network whose code depends on values cannot be told."""
        seen = self._seen(self.size, allocator)
        if size == self.size or seen.dry is None:
            return seen
        others = self.others or self._by_lines(allocator)
        if others is None:
            return self._seen(size, allocator)
        told = others.at(size, allocator=allocator)
        return scaled(told, by=others.at(self.size, allocator=allocator), to=seen)

    def _seen(self, size: Size, allocator: str) -> Working:
        """As a run at `size` told."""
        key = (size, allocator)
        if key not in self._told:
            run = self._run(size)
            self._told[key] = NOTHING_KNOWN if run is None else self._working(run, allocator)
        return self._told[key]

    def _working(self, run: DryRun, allocator: str) -> Working:
        moves = sequence(run, self.workspaces)
        allocated = self.calibration.corrected(peak_of(moves))
        reserved = least = None
        if allocator in FRAGMENTS:
            done = replay(moves, allocator)
            reserved = allocated + done.slack
            least = allocated + least_reserved(moves, allocator) - done.allocated
        return Working(
            dry=run.peak,
            allocated=max(run.peak, allocated),
            reserved=reserved,
            least=least,
            at=run.at,
            flops=float(run.flops),
        )

    def _by_lines(self, allocator: str) -> Gauge | None:
        """Lines through runs at `sizes`; None where one of them could not be told."""
        if allocator not in self._lines:
            told = {size: self._seen(size, allocator) for size in self.sizes}
            known = all(working.dry is not None for working in told.values())
            self._lines[allocator] = _through(told, allocator) if told and known else None
        return self._lines[allocator]

    def _run(self, size: Size) -> DryRun | None:
        if size not in self._runs:
            self._runs[size] = self._try(size)
        return self._runs[size]

    def _try(self, size: Size) -> DryRun | None:
        try:
            return dry_run(self.call(size))
        except Exception as error:  # the network's own, whatever it is
            said = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
            kind = "" if isinstance(error, TightfitError) else type(error).__name__
            self.problem = ": ".join(part for part in (kind, said) if part)
            return None


def _through(told: Mapping[Size, Working], allocator: str) -> TableGauge:
    """Lines through what runs told."""

    def line(of: Callable[[Working], int | None]) -> tuple[Line, ...]:
        return drawn([Point(s.area, s.frames, of(working) or 0) for s, working in told.items()])

    kept = allocator in FRAGMENTS
    rows = [(1.0, s.area, s.samples, float(s.samples) ** 2) for s in told]
    needs = Needs(
        dry=line(lambda working: working.dry),
        allocated=line(lambda working: working.allocated),
        reserved={allocator: line(lambda working: working.reserved)} if kept else {},
        least={allocator: line(lambda working: working.least)} if kept else {},
        flops=nearest(rows, [working.flops or 0.0 for working in told.values()]),
    )
    return TableGauge(needs, "predicted")
