"""What was asked for when a module was fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from tightfit.place.streaming.annexe import Annexe
from tightfit.place.streaming.pinned import Pins
from tightfit.plan.budget import Budget
from tightfit.plan.figure import UNKNOWN_RATE, Rate
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import Mode
from tightfit.plan.supply import Supply
from tightfit.run.fitting.placing import Pack
from tightfit.watch import Recorder


@dataclass(frozen=True)
class Terms:
    """What was asked for.

    Attributes:
        supply: what there is of the card, with the user's budget.
        spare: bytes of it that are not planned for: other threads may take those meanwhile.
        mode: see `tightfit.plan.streaming.residency`.
        fixed: a plan that is kept to, whatever happens; None is to follow the room.
        pack: whether weights are packed; see `tightfit.run.fitting.placing`.
        pins: which masters the driver holds in place.
        shares: with other models that share, one master for the same weights of the same file.
        traces: what each step did is kept in the session.
        recorder: is told what happens; None is one that keeps little, for whoever asks.
        others: bytes of host memory that other models on the card may still want. None is that
            there are none: what is resident stays so, and does not come back from the host.
        once: it is called once or twice between two rests, as encoders are.
        compares: each copy is waited for and compared with its master.
        home: the card that its callers believe it to be on, if that is another one.
        annexe: room on a second card for what streams; None is none.
        peer: how fast what lies there is copied from.
    """

    supply: Supply
    mode: Mode = "auto"
    fixed: Plan | None = None
    pack: Pack = "off"
    pins: Pins = field(default_factory=Pins.none)
    shares: bool = False
    traces: bool = False
    recorder: Recorder | None = None
    compares: bool = False
    spare: int = 0
    others: Callable[[], int] | None = None
    once: bool = False
    home: torch.device | None = None
    annexe: Annexe | None = None
    peer: Rate = UNKNOWN_RATE

    @property
    def planned(self) -> Supply:
        """What is planned for."""
        return replace(self.supply, budget=max(1, self.supply.budget - self.spare))

    def with_budget(self, budget: Budget, *, spare: int) -> Terms:
        """These, with another budget."""
        supply = replace(self.supply, budget=budget.budget, reserve=budget.reserve)
        return replace(self, supply=supply, spare=spare)
