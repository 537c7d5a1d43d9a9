"""Networks that stream badly in every way that was thought of, and plans for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from tightfit.card.virtual.card import VirtualCard
from tightfit.place import placed
from tightfit.place.streaming.groups import Group, groups_of
from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure
from tightfit.plan.plan import make
from tightfit.plan.streaming.pieces import Level, pieces_of
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.plan.streaming.ring import NO_RING, Ring
from tightfit.plan.supply import Supply
from tightfit.run.fitting.placing import Weighed
from tightfit.units import GIB
from tightfit.weigh.blocks import Weights
from tightfit.weigh.order import Order, run_order


class Table(nn.Module):
    """Two layers, and a table of its own that both lie within the use of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(width))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) * self.table.tanh()


class Normed(nn.Module):
    """A weight that is made of two originals at each access, a norm, and two kinds of buffers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), weight_norm(nn.Linear(width, width))
        self.register_buffer("shift", torch.randn(width))
        self.register_buffer("scale", torch.randn(width), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(self.norm(x)) * self.scale + self.shift


class Foreign(nn.Module):
    """Reaches for the weight of a layer that it never calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + functional.linear(torch.tanh(self.first(x)), self.proj.weight, self.proj.bias)


class Uncalled(nn.Module):
    """Is never called itself: the network calls its layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width, bias=False)


BLOCKS: tuple[Callable[[int], nn.Module], ...] = (Table, Normed, Foreign, Uncalled)


class Net(nn.Module):
    """Blocks in any order, as often as wanted; the last layer is tied to the first."""

    _no_split_modules = ("Table", "Normed", "Foreign", "Uncalled")

    def __init__(self, width: int, kinds: Sequence[int], *, tied: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(BLOCKS[kind](width) for kind in kinds)
        self.last = nn.Linear(width, width)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor, order: Sequence[int] | None = None) -> torch.Tensor:
        """[B, width] to the same; `order` are indices of blocks, None is each once."""
        x = self.first(x)
        for at in range(len(self.blocks)) if order is None else order:
            block: Any = self.blocks[at]
            called = not isinstance(block, Uncalled)
            x = block(x) if called else x + block.two(torch.relu(block.one(x)))
        result: torch.Tensor = self.last(functional.normalize(x, dim=-1))
        return result


@dataclass(frozen=True)
class Case:
    """A module, what it weighs, and what one call does with it."""

    module: nn.Module
    order: Order
    weighed: Weighed

    @classmethod
    def of(cls, module: nn.Module, call: Callable[[], object]) -> Case:
        """Where `call` runs the module on the host."""
        order = run_order(module, call)
        return cls(module, order, Weighed.of(module, order))

    @property
    def blocks(self) -> Weights:
        """In the order they run."""
        return self.weighed.blocks

    @property
    def units(self) -> tuple[Unit, ...]:
        """As large as what is really taken."""
        return self.weighed.units

    def everything(self, level: Level, slots: int, stays: Callable[[int], bool]) -> Residency:
        """Pieces at `level`, each streamed but those whose index `stays`."""
        pieces = pieces_of(self.units, level, convert="card")
        kept = tuple(stays(at) for at in range(len(pieces)))
        largest = max((p.slot for p, stay in zip(pieces, kept, strict=True) if not stay), default=0)
        return Residency(pieces, kept, Ring(level, largest, slots) if largest else NO_RING, 0)

    def beside(self) -> int:
        """The most that is taken beside the plan: further rings, and placeholders."""
        return self.weighed.beside

    def groups(self, residency: Residency) -> tuple[Group, ...]:
        """What moves as one under `residency`."""
        return groups_of(self.module, residency, self.blocks, order=self.order)

    def planned(self, room: int, *, slots: int = 2, mode: Mode = "auto") -> Residency | None:
        """As the planner has it where weights may take `room` bytes. None is that it has no way."""
        demand = Demand("denoise", self.units, Figure(self.beside()))
        plan = make([demand], Supply("virtual", room, room), slots=slots, mode=mode)
        return plan.stages[0].residency if plan.fits else None

    def least(self, *, slots: int = 2) -> int:
        """The room in which everything can be streamed through so many slots."""
        found = self.planned(GIB, slots=slots, mode="none")
        assert found is not None
        return found.bytes + self.beside()

    def whole(self) -> int:
        """The room in which everything stays."""
        return sum(unit.bytes for unit in self.units) + self.beside()


def resident(
    module: nn.Module, card: VirtualCard, call: Callable[[], torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """The result on the host, and the peak beyond the weights, with everything on the card."""
    with placed(module, card.device), torch.no_grad():
        held = card.read().allocated
        card.reset_peaks()
        value = call().cpu()
        peak = card.read().peak_allocated
    assert held is not None
    assert peak is not None
    return value, peak - held
