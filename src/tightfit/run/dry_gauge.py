"""A gauge that runs the network itself on the meta device, at the size of the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tightfit.plan.size import Size
from tightfit.plan.slack import least_reserved, replay
from tightfit.run.planning.demands import SLACK
from tightfit.run.planning.gauge import NOTHING_KNOWN, Gauge, NoGauge, Working
from tightfit.weigh.calibration import Calibration
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.workspace import NONE, Workspaces, peak_of, sequence


@dataclass
class DryGauge:
    """Dry runs of one stage of one network.

    Attributes:
        call: makes the call at a size; it runs on the meta device.
        size: of the job: what is asked for at this size is run.
        others: tells other sizes (tiles, and what a search looks at); None runs them too.
        workspaces: the scratch inside operators.
        calibration: what real runs measured.
        problem: why a run failed, if one did: then nothing is predicted.
    """

    call: Callable[[Size], Callable[[], object]]
    size: Size
    others: Gauge | None = None
    workspaces: Workspaces = NONE
    calibration: Calibration = field(default_factory=Calibration)
    problem: str | None = None
    _runs: dict[Size, DryRun | None] = field(default_factory=dict)

    def at(self, size: Size, *, allocator: str) -> Working:
        """At `size`; a network whose code depends on values cannot be told."""
        if size != self.size and self.others is not None and not isinstance(self.others, NoGauge):
            return self.others.at(size, allocator=allocator)
        if size not in self._runs:
            self._runs[size] = self._run(size)
        run = self._runs[size]
        if run is None:
            return NOTHING_KNOWN
        moves = sequence(run, self.workspaces)
        allocated = self.calibration.corrected(peak_of(moves))
        reserved = least = None
        if allocator in SLACK:
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

    def _run(self, size: Size) -> DryRun | None:
        try:
            return dry_run(self.call(size))
        except Exception as error:  # the network's own, whatever it is
            lines = str(error).strip().splitlines()
            self.problem = f"{type(error).__name__}{': ' + lines[0][:120] if lines else ''}"
            return None
