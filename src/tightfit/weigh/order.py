"""The order in which a module's weights are needed, found by watching a call."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tightfit.weigh.blocks import Block, Leaf, Weights
from tightfit.weigh.dry import DryRun, Fused, FusedKernels, Onlooker, dry_run
from tightfit.weigh.paths import holds
from tightfit.weigh.places import Places
from tightfit.weigh.shapes import tensors_in
from tightfit.weigh.shells import has_wrapper
from tightfit.weigh.tensors import Held, Kind

BYTE_WORK = 100
"""Operations that a card does in the time in which it writes a byte: 60 to 150 on cards from an
RTX 3060 to an H200, by their published rates and what networks reach of them."""


@dataclass(frozen=True)
class Foreign:
    """A tensor that was used while the module that owns it was not being called.

    Hooks on its owner do not see such a use: whoever moves weights at calls has to move `unit`
    as one.

    Attributes:
        owner: path of the module that owns the tensor.
        name: the tensor, below its owner.
        user: path of the innermost module that was being called; empty for the root, or for code
            outside of it.
        unit: path of the lowest module that was being called and holds the owner. Empty where
            only the root does: then the owner has to stay where it is used.
    """

    owner: str
    name: str
    user: str
    unit: str

    @property
    def path(self) -> str:
        """Of the tensor, from the root."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


@dataclass(frozen=True)
class Order:
    """What one call did with the weights of a module.

    Attributes:
        tensors: paths of all tensors that were used, by their first use.
        uses: paths of the modules whose tensors were used, in order; again only after another
            was called or used. The use of a tie names the module that it runs in, then the one
            that holds it.
        calls: how often each module was called; those that were not are absent.
        unused: paths of tensors that were not used, in the order of registration.
        foreign: uses of parameters and buffers from elsewhere, each tensor and user once. What
            an owner's call gave out as a view and others read is among them.
        foreign_attributes: the same for plain attributes, which modules move by themselves.
        work: for each of `uses`, what was done from its first tensor on until another's came, in
            floating-point operations; a byte that is written counts as `BYTE_WORK` of them. What
            happens between two layers, such as attention, is the work of the first.
        launches: likewise, how many operators made something new.
    """

    tensors: tuple[str, ...]
    uses: tuple[str, ...]
    calls: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    foreign_attributes: tuple[Foreign, ...] = ()
    work: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, int] = field(default_factory=dict)

    def schedule(self, weights: Weights) -> tuple[str, ...]:
        """Names of the blocks in the order they are needed; again where they are needed again."""
        homes = {leaf.name: block.name for block in weights.blocks for leaf in block.leaves}
        needed: list[str] = []
        for user in self.uses:
            block = homes.get(user)
            if block is not None and needed[-1:] != [block]:
                needed.append(block)
        return tuple(needed)

    def times(self, block: Block) -> int:
        """How often `block` ran; 0 where none of its weights were used."""
        if not any(leaf.name in self.uses for leaf in block.leaves):
            return 0
        called = self.calls.get(block.name, 0)
        return called or max(1, *(self.calls.get(leaf.name, 0) for leaf in block.leaves))

    def across(self, weights: Weights) -> tuple[Foreign, ...]:
        """Foreign uses that reach into a block from outside: moving whole blocks misses them."""
        homes = {leaf.name: block.name for block in weights.blocks for leaf in block.leaves}
        return tuple(use for use in self.foreign if not holds(homes.get(use.owner, ""), use.unit))


def run_order(module: nn.Module, call: Callable[[], object]) -> Order:
    """Run `call`, which runs `module` or parts of it, and see which weights it needs when.

    On the meta device this takes no values and little time, and attention and RMS norms count as
    the fused kernels that real cards run; on any other it is a real run. What is compiled runs as
    it is written. What `call` raises comes through. The module is left as it was.
    """
    watch = _Watch(module)
    with watch.hooked(), torch.no_grad(), _not_compiled(), FusedKernels(None, watch), watch:
        call()
    return watch.order()


def dry_order(module: nn.Module, call: Callable[[], object]) -> tuple[DryRun, Order]:
    """What `dry_run` and `run_order` tell of `call`, whose tensors lie on the meta device.

    In one run, since that is what takes the time.
    """
    watch = _Watch(module)
    with watch.hooked(), _not_compiled():
        run = dry_run(call, onlooker=watch)
    return run, watch.order()


def ordered(weights: Weights, order: Order) -> Weights:
    """The same blocks and leaves, sorted by their first use; those that were not used come last."""
    first: dict[str, int] = {}
    for position, user in enumerate(order.uses):
        first.setdefault(user, position)
    never = len(order.uses)

    def at(leaf: Leaf) -> int:
        return first.get(leaf.name, never)

    blocks = [
        replace(block, leaves=tuple(sorted(block.leaves, key=at))) for block in weights.blocks
    ]
    blocks.sort(key=lambda block: at(block.leaves[0]))
    return replace(weights, blocks=tuple(blocks), order="dry run")


def joined(weights: Weights, order: Order) -> Weights:
    """The same leaves, in blocks that no foreign use reaches into, as far as calls can tell.

    Blocks become one with all that lies in the unit of a use that reached into them. A use that
    only the root's call could cover is left: its owner has to stay where it is used.
    """
    units = {use.unit for use in order.across(weights)} - {""}
    blocks: dict[str, list[Leaf]] = {}
    for block in weights.blocks:
        # The outermost of the units that it lies in; they lie in one another or apart.
        home = min((unit for unit in units if holds(unit, block.name)), key=len, default=None)
        blocks.setdefault(block.name if home is None else home, []).extend(block.leaves)
    return replace(weights, blocks=tuple(Block(n, tuple(b)) for n, b in blocks.items()))


def _not_compiled() -> AbstractContextManager[object]:
    """A compiler gives way, where one is loaded: it cannot be watched, and calls no hooks."""
    stance: Any = torch.compiler.set_stance
    return stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class _Watch(Onlooker):
    """Sees every operator, and knows which modules are being called meanwhile."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()
        self._uses: list[str] = []
        self._noted: set[str] = set()  # among the uses since a call last began or ended
        self._used: dict[str, None] = {}
        self._foreign: dict[Kind, dict[Foreign, None]] = {kind: {} for kind in Kind}
        self._places = Places(module)
        self._work: Counter[str] = Counter()
        self._launches: Counter[str] = Counter()

    def order(self) -> Order:
        """What was seen."""
        weights = self._foreign[Kind.PARAMETER] | self._foreign[Kind.BUFFER]
        return Order(
            tuple(self._used),
            tuple(self._uses),
            MappingProxyType(dict(self._calls)),
            self._places.without(self._used),
            tuple(weights),
            tuple(self._foreign[Kind.ATTRIBUTE]),
            MappingProxyType(dict(self._work)),
            MappingProxyType(dict(self._launches)),
        )

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """While inside, calls of modules are noticed: before their other hooks, and after them."""
        handles = []
        try:
            for path, module in self._module.named_modules():
                before, after = self._hooks(path)
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                handles.append(module.register_forward_hook(after, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, path: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(*_: object) -> None:
            self._calls[path] += 1
            self._running.append(path)
            self._noted.clear()

        def after(*_: object) -> None:
            while self._running and self._running.pop() != path:
                pass
            self._noted.clear()

        return before, after

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.looks_away:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                self._look(leaf)
        if has_wrapper(types, leaves):
            return NotImplemented
        result = func(*args, **kwargs)
        if self._uses:
            work = _work(func, args, kwargs, result)
            self._work[self._uses[-1]] += work
            self._launches[self._uses[-1]] += work > 0
        return result

    def see(self, kernel: Fused) -> None:
        """Its tensors are used, and it is work."""
        for tensor in kernel.all:
            self._look(tensor)
        if self._uses:
            self._work[self._uses[-1]] += kernel.flops + BYTE_WORK * kernel.made.nbytes
            self._launches[self._uses[-1]] += 1

    def _look(self, tensor: torch.Tensor) -> None:
        for ties in self._places.of(tensor):
            self._use(ties)

    def _use(self, ties: list[Held]) -> None:
        held = self._nearest(ties)
        owner = held.leaf
        self._used.setdefault(held.path)
        if owner and owner not in self._running:
            inside = [path for path in self._running if holds(path, owner)]
            name = held.path.removeprefix(f"{owner}.")
            user = self._running[-1] if self._running else ""
            use = Foreign(owner, name, user, inside[-1] if inside else "")
            self._foreign[held.kind].setdefault(use)
            if held.kind is Kind.ATTRIBUTE:
                return
        for path in (owner, ties[0].leaf):
            if path not in self._noted and self._uses[-1:] != [path]:
                self._uses.append(path)
            self._noted.add(path)

    def _nearest(self, ties: list[Held]) -> Held:
        """Of the places of a tie, the one whose module was called last."""
        for path in reversed(self._running):
            for held in ties:
                if held.leaf == path:
                    return held
        return ties[0]


def _work(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Of one operator, as `Order.work` counts it; views are none."""
    if any(one.alias_info is not None for one in func._schema.returns):
        return 0
    formula = flop_registry.get(func.overloadpacket)
    flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
    return flops + BYTE_WORK * sum(tensor.nbytes for tensor in tensors_in(result))
