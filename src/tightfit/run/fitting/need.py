"""What one call of a live module needs beside its weights, told by the shapes of its inputs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.place.streaming.caches import forget_cached
from tightfit.plan.slack import FRAGMENTS, least_reserved, replay, steady_reserved
from tightfit.run.fitting.aside import nothing_lasts
from tightfit.weigh.answers import either
from tightfit.weigh.conversions import Conversions
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.order import Order, dry_order, run_order
from tightfit.weigh.shells import alike, is_shell, plain, why_unknown
from tightfit.weigh.tensors import Held, Kind, walk
from tightfit.weigh.workspace import CUDA, NONE, peak_of, sequence

T = TypeVar("T")

_META = torch.device("meta")
_turns = threading.RLock()
_STEP = 8
"""Of what a call allocates, the part by which its slack is raised the first time."""
_NAMED = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Call:
    """A call of a module, or of a method of it.

    Attributes:
        method: ``forward``, ``encode`` or such, or the path of a part that is called by itself.
        args, kwargs: what it is given.
    """

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def key(self, *, numbers: bool = True) -> Hashable:
        """Equal for calls that need the same: by shapes, not by values but those of integers.

        Without `numbers`, for calls that need the same where integers are times and not sizes.
        """
        leaves, spec = self._flat
        grows = torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")
        told = [_told(leaf) for leaf in leaves]
        if not numbers:
            told = [int if type(leaf) is int else leaf for leaf in told]
        return (self.method, spec, grows, *told)

    def arriving(self) -> int:
        """Bytes of inputs on the host: they are brought to the card for the call."""
        return sum(round_up(leaf.nbytes, ALIGNMENT) for leaf in self._on_host)

    @property
    def is_there(self) -> bool:
        """Whether none of its tensors is on the host."""
        return not self._on_host

    @property
    def is_plain(self) -> bool:
        """Whether it is given nothing but tensors, numbers and names."""
        leaves, _ = self._flat
        return all(isinstance(leaf, (torch.Tensor, float, *_NAMED)) for leaf in leaves)

    @property
    def given(self) -> list[Any]:
        """What it is given, one by one: tensors, numbers, generators, objects."""
        leaves, _ = self._flat
        return leaves

    def without_values(self) -> Call:
        """The same with its tensors on the meta device."""
        args, kwargs = tree_map(_to_meta, (self.args, dict(self.kwargs)))
        return Call(self.method, args, kwargs)

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return tree_flatten((self.args, dict(self.kwargs)))

    @cached_property
    def _on_host(self) -> list[torch.Tensor]:
        leaves, _ = self._flat
        return [
            leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
        ]

    def on(self, module: nn.Module) -> Callable[[], object]:
        """The call, to be made; hooks on calls of `module` run as ever."""
        method: Callable[..., object] = attrgetter(self.method)(module)
        if self.method == "forward":
            method = module
        return lambda: method(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Need:
    """What one call takes on the card beside weights; sizes in bytes, None is unknown.

    Attributes:
        dry: new tensors alone.
        allocated: with the scratch inside operators, as predicted or as seen, whichever is more.
        slack: what the allocator takes beyond that, where it need not give its cache back in call
            after call.
        least: of `slack`, without which a single call does not hold.
        most: what the allocator would take beyond `allocated` where nothing bounds it.
        flops: floating-point operations.
        operators: that make something new.
        at: the operator at the peak.
        problem: why the dry run failed, where it did.
        dtype: that converted weights are used in.
        runs: how often it was seen.
        lacked: by how much slack was raised, since calls were seen to have too little.
    """

    dry: int | None = None
    allocated: int | None = None
    slack: int = 0
    least: int = 0
    most: int = 0
    flops: float | None = None
    operators: int = 0
    at: str | None = None
    problem: str | None = None
    dtype: torch.dtype | None = None
    runs: int = 0
    lacked: int = 0

    @property
    def slacks(self) -> tuple[int, ...]:
        """From what each call of a loop should have down to what one cannot do without.

        Between them lies the least with what calls were seen to lack.
        """
        return self.slack, min(self.slack, self.least + self.lacked), self.least

    def lacking(self, grain: int) -> Need:
        """The same with more slack, in steps that double, so that a loop gets there in a few.

        Up to what the allocator takes where nothing bounds it, or as much again as is allocated.
        """
        allocated = self.allocated or 0
        step = max(grain, allocated // _STEP, self.lacked)
        bound = max(self.most, allocated, grain, self.slack)
        if self.lacked >= bound:
            return self
        slack = min(self.slack + step, bound)
        return replace(self, slack=slack, lacked=self.lacked + step)

    def with_room(self, size: int) -> Need:
        """The same, once a call was seen to hold with so many bytes more, and not without."""
        return replace(self, slack=self.slack + size, least=self.least + size)


def need_of(module: nn.Module, call: Call, card: Card) -> Need:
    """By a dry run of `call`; the module, its caches and generators are left as they were.

    Where its code asks whether something is true, it needs what it needs in the worse case; if it
    looks at other values, it cannot be told, and only `problem` is known. Raises `UsageError`, by
    its path, for a buffer that the call writes to.
    """
    what = Conversions.of(module)
    dtype = what.dtype(call.given)
    try:
        runs = either(lambda: _looked_at(module, call, what, dry_run))
    except UsageError:
        raise
    except Exception as error:  # the network's own, whatever it is: the real call will raise it
        problem = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        return Need(problem=problem, dtype=dtype)
    return replace(_worst([_needed(run, card) for run in runs]), dtype=dtype)


def order_of(module: nn.Module, call: Call) -> Order | None:
    """Which weights `call` uses when; None where a dry run cannot tell."""
    what = Conversions.of(module)
    try:
        return _one_of(either(lambda: _looked_at(module, call, what, partial(run_order, module))))
    except UsageError:
        raise
    except Exception:  # see `need_of`
        return None


def need_and_order(module: nn.Module, call: Call, card: Card) -> tuple[Need, Order | None]:
    """What `need_of` and `order_of` tell, by one run where that is possible."""
    what = Conversions.of(module)
    try:
        found = either(lambda: _looked_at(module, call, what, partial(dry_order, module)))
    except UsageError:
        raise
    except Exception:  # see `need_of`; one of the two may be told all the same
        return need_of(module, call, card), order_of(module, call)
    need = _worst([_needed(run, card) for run, _ in found])
    return replace(need, dtype=what.dtype(call.given)), _one_of([order for _, order in found])


def result_of(module: nn.Module, call: Call) -> object:
    """What `call` gives, on the meta device; nothing of it lasts.

    Raises whatever the network does where it cannot be run without values.
    """
    what = Conversions.of(module)
    return either(lambda: _looked_at(module, call, what, lambda made: made()))[0]


def _looked_at(
    module: nn.Module,
    call: Call,
    what: Conversions,
    look: Callable[[Callable[[], object]], T],
) -> T:
    """What `look` makes of the call on the meta device."""
    with _dry(module, call, what) as made:
        return look(made)


def _worst(needs: Sequence[Need]) -> Need:
    return max(needs, key=lambda need: (need.allocated or 0) + need.most)


def _one_of(orders: Sequence[Order]) -> Order | None:
    """The order, where there is but one."""
    told = {(order.tensors, order.uses, order.unused) for order in orders}
    return orders[0] if len(told) == 1 else None


def _needed(run: DryRun, card: Card) -> Need:
    """A virtual card of exact books has neither scratch nor slack, and blocks of 512 bytes."""
    moves = sequence(run, CUDA if card.kind == "cuda" else NONE)
    rounded = [(key, round_up(size, ALIGNMENT)) for key, size in moves]
    allocated = peak_of(rounded)
    flops, operators = float(run.flops), len(run.calls)
    if card.allocator not in FRAGMENTS:
        return Need(run.peak, allocated, flops=flops, operators=operators, at=run.at)
    free = replay(moves, card.allocator, grain=card.grain)
    allocated = max(allocated, free.allocated)
    steady = steady_reserved(moves, card.allocator, grain=card.grain)
    least = min(steady, least_reserved(moves, card.allocator, grain=card.grain))
    return Need(
        run.peak,
        allocated,
        slack=max(0, steady - allocated),
        least=max(0, least - allocated),
        most=max(0, steady - allocated, free.reserved - allocated),
        flops=flops,
        operators=operators,
        at=run.at,
    )


@contextmanager
def _dry(module: nn.Module, call: Call, what: Conversions) -> Iterator[Callable[[], object]]:
    """While inside, `module` lies on the meta device; what is given makes the call there.

    Weights that are converted are there as they are used. Tensors are told apart as objects: while
    weights are away, many look at the same bytes. One at a time: what is put back afterwards, such
    as what generators draw next, is the whole process's.
    """
    dtype = what.dtype(call.given)
    used = {
        id(each.tensor): each.used_in(dtype, each.tensor.dtype)
        for layer in what.layers
        for each in layer.weights
    }
    stand_ins: dict[int, torch.Tensor] = {}
    with _turns, nothing_lasts(module, call.given):
        try:
            before = [held for held in walk(module) if not held.steps]
            for held in before:
                if id(held.tensor) not in stand_ins:
                    used_in = used.get(id(held.tensor), held.tensor.dtype)
                    stand_ins[id(held.tensor)] = _stand_in(held.tensor, used_in)
                _table(held)[held.name] = stand_ins[id(held.tensor)]
            with _interpreted():
                yield call.without_values().on(module)
            for held in before:
                if held.kind is Kind.BUFFER and stand_ins[id(held.tensor)]._version:
                    raise UsageError(
                        f"`{held.path}` is written to in calls of `{type(module).__name__}`, and "
                        "what is written would be lost: if it is a norm in training, call eval()."
                    )
        finally:
            forget_cached(module)


def _stand_in(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):  # else it does not count what is written to it
        if is_shell(tensor) and not why_unknown(tensor):
            return alike(tensor, _empty, device=_META)
        empty = torch.empty_like(tensor, dtype=dtype, device=_META, requires_grad=False)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(empty, requires_grad=False)
        return empty


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(plain(tensor), device=_META, requires_grad=False)


def _table(held: Held) -> dict[str, Any]:
    if held.kind is Kind.ATTRIBUTE:
        return vars(held.owner)
    return held.owner._parameters if held.kind is Kind.PARAMETER else held.owner._buffers


@contextmanager
def _interpreted() -> Iterator[None]:
    """What is compiled runs uncompiled; warnings about a call that is none are nobody's."""
    stance: Any = torch.compiler.set_stance
    with warnings.catch_warnings(), stance("force_eager"):
        warnings.simplefilter("ignore")
        yield


def _told(leaf: object) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype, leaf.device.type)
    if isinstance(leaf, _NAMED):
        return leaf
    return type(leaf).__name__  # a scale changes from call to call, and nothing that is allocated


def _to_meta(leaf: object) -> object:
    return leaf.to(_META) if isinstance(leaf, torch.Tensor) else leaf
