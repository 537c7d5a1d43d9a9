"""A job on paper: what a plan is made from, for other sizes and budgets too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tightfit.card.host_memory import HostMemory
from tightfit.card.outlook import Outlook
from tightfit.plan.budget import Budget
from tightfit.plan.plan import Plan, make
from tightfit.plan.size import Size
from tightfit.plan.streaming.residency import Mode
from tightfit.plan.tilesize import TileWish
from tightfit.run.planning.demands import demands_of
from tightfit.run.planning.model import ENCODERS, Model, cast_size
from tightfit.run.planning.supplies import supply_of

if TYPE_CHECKING:
    from tightfit.run.planning.gauge import Working

_HOST = "host memory"
_SMALLEST = "the smallest card"


@dataclass(frozen=True)
class Question:
    """Everything that a plan is made from; ask `plan` for other sizes and budgets too.

    Attributes:
        models: the stages of the job, weighed.
        asked: the size of the job, as it was asked for.
        size: likewise, as every model takes it.
        card: on paper.
        amount: of it that may be used.
        mode: where weights live.
        tile: what was asked about tiles.
        host: this machine's memory; None is unknown, or the card itself.
        said: what is not predicted, taken for granted, or read from a table.
    """

    models: tuple[Model, ...]
    asked: Size
    size: Size
    card: Outlook
    amount: Budget
    mode: Mode
    tile: TileWish
    host: HostMemory | None
    said: tuple[str, ...]

    def plan(self) -> Plan:
        """What goes where."""
        demands = demands_of(self.models, self.size, self.card, tile=self.tile)
        plan = make(demands, supply_of(self.card, self.amount, self.host), mode=self.mode)
        if self.card.kind != "cpu":
            return plan
        # There the card is the host, and its memory is in the ledger already.
        return replace(plan, not_predicted=tuple(x for x in plan.not_predicted if x != _HOST))

    def sized(self, size: Size) -> Question:
        """The same for a job of `size`. Raises `UsageError` for one that a model does not take."""
        return replace(self, asked=size, size=cast_size(self.models, size))

    def budgeted(self, budget: int) -> Question:
        """The same on the smallest card of its kind on which `budget` may be used."""
        total = budget + self.card.context + self.amount.reserve
        card = replace(self.card, name=_SMALLEST, product=None, total=total, held_by_others=0)
        return replace(self, card=card, amount=Budget(budget, self.amount.reserve))

    def working(self, model: Model) -> Working:
        """What the largest call of a stage needs beside its weights."""
        told = model.gauge.at(model.whole(self.size), allocator=self.card.allocator)
        # On a bare card what is allocated is the tensors alone, whatever a table says of CUDA.
        return told if self.card.scratch else replace(told, allocated=told.dry)

    def predicts(self, model: Model) -> bool:
        """Whether it is known what `model` needs beside its weights."""
        return self.working(model).dry is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about these figures, a phrase for each."""
        return tuple(dict.fromkeys((*_padded(self.asked, self.size), *self.said)))

    @property
    def heading(self) -> str:
        """What was asked, in one line."""
        names = ", ".join(dict.fromkeys(model.name for model in self.models))
        if all(model.stage in ENCODERS for model in self.models):
            many = self.size.batch
            return f"{names}, {many} prompts at once" if many > 1 else names
        return f"{names} at {self.size}"

    def as_dict(self) -> dict[str, Any]:
        """JSON values: the plan, and what it was made from."""
        return {
            **self.plan().as_dict(),
            "size": asdict(self.size),
            "models": [self._model(model) for model in self.models],
            "notes": list(self.notes),
        }

    def _model(self, model: Model) -> dict[str, Any]:
        needs = self.working(model)
        return {
            "name": model.name,
            "stage": model.stage,
            "dtype": model.dtype,
            "weight_bytes": model.weights.stored_bytes,
            "converted_bytes": model.weights.converted_bytes,
            "blocks": len(model.weights.blocks),
            "order": model.weights.order,
            "dry_bytes": needs.dry,
            "allocated_bytes": needs.allocated,
            "reserved_if_unbounded_bytes": needs.reserved,
            "peak_operator": needs.at,
            "source": None if needs.dry is None else needs.source,
        }


def _padded(asked: Size, job: Size) -> list[str]:
    notes = []
    if (asked.width, asked.height) != (job.width, job.height):
        notes.append(f"{asked.width}x{asked.height} is padded to {job.width}x{job.height}")
    if asked.frames != job.frames:
        notes.append(f"{asked.frames} frames are padded to {job.frames}")
    return notes
