"""The blocks of a live module: what moves as one, found by the names and lists it carries."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tightfit.errors import InputError
from tightfit.weigh.blocks import Block, Leaf, Weights
from tightfit.weigh.paths import upwards
from tightfit.weigh.tensors import (
    Held,
    Kind,
    Tally,
    converted_bytes,
    elements,
    identity,
    recomputed,
    walk,
)

_HINTS = ("_no_split_modules", "_repeated_blocks", "_group_offload_block_modules")
_FEATURES = (("in_features", "out_features"), ("infeatures", "outfeatures"))
_WEIGHTS = ("weight", "weight_packed")
_WHOLE = 4
"""A block above one part in so many of its model gives way to the blocks inside it."""
_COARSE = 32
"""Likewise, where the model names those inside as well: the last stage of SDXL's UNet takes an
eighth of a step, in which nothing could be copied but itself."""


def blocks_of(
    module: nn.Module, *, compute_dtype: torch.dtype | None = None, name: str | None = None
) -> Weights:
    """What `module` weighs, in blocks as they move; values are not read, any device will do.

    Blocks are the modules whose classes the model names as not to be split or as repeated, and
    the members of its lists of composite modules. One gives way to the blocks inside it where it
    is above a quarter of the model, or where those are named and it is not. What lies outside
    blocks is a block for each owner. A leaf is what one module uses: parameters, buffers and
    tensors in plain attributes; not those inside its lists, which are more often caches.

    Args:
        module: any module, on any device.
        compute_dtype: what the weights are used in; None for what each is stored in, so that only
            packed and recomputed ones are converted.
        name: of the model; its class without one.

    The order is that of registration. A tie belongs to the first module that has it. Raises
    `InputError` for a lazy module, whose weights have no shape yet.
    """
    leaves = _leaves(module, compute_dtype)
    homes = _Cut(module, {leaf.name: leaf.stored_bytes for leaf in leaves}).homes()
    members: dict[str, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        members[homes[leaf.name]].append(leaf)
    blocks = tuple(Block(path, tuple(inside)) for path, inside in members.items())
    return Weights(name or type(module).__name__, blocks, "keys")


def _leaves(root: nn.Module, compute_dtype: torch.dtype | None) -> list[Leaf]:
    """What each module uses, in the order of registration; modules without anything left out."""
    tensors: dict[str, list[Held]] = defaultdict(list)
    for held in walk(root):
        if is_lazy(held.tensor):
            raise InputError(
                f"`{held.path}` has no shape yet: run the module once before it is weighed."
            )
        if not held.steps and not held.recomputed:
            tensors[held.leaf].append(held)
    fresh = _fresh_bytes(tensors)
    leaves = []
    for path, module in root.named_modules():
        helds = tensors.get(path, [])
        sizes = [fresh[id(held)] for held in helds]
        leaf = Leaf(
            path,
            stored_bytes=sum(sizes),
            converted_bytes=_converted(module, helds, compute_dtype),
            largest_bytes=max(sizes, default=0),
            elements=sum(_elements(module, held) for held in helds if fresh[id(held)]),
        )
        if leaf.stored_bytes or leaf.converted_bytes:
            leaves.append(leaf)
    return leaves


def _fresh_bytes(tensors: dict[str, list[Held]]) -> dict[int, int]:
    """For each tensor, the bytes that no earlier one has; plain attributes come last."""
    tally = Tally()
    helds = [held for inside in tensors.values() for held in inside]
    helds.sort(key=lambda held: held.kind is Kind.ATTRIBUTE)
    return {id(held): tally.add(held.tensor) for held in helds}


def _converted(module: nn.Module, helds: list[Held], compute_dtype: torch.dtype | None) -> int:
    """Bytes of the copies that exist while `module` runs."""
    dtype = compute_dtype or getattr(module, "compute_dtype", None)
    dtype = dtype if isinstance(dtype, torch.dtype) else None
    copies = {
        identity(held.tensor): converted_bytes(held.tensor, dtype, values=_elements(module, held))
        for held in helds
        if held.kind is not Kind.ATTRIBUTE
    }
    made = sum(
        elements(original) * (dtype or original.dtype).itemsize
        for _, original in recomputed(module)
    )
    return sum(copies.values()) + made


def _elements(module: nn.Module, held: Held) -> int:
    """Logical values; a linear layer knows them even where its packed weight does not tell."""
    told = elements(held.tensor)
    if held.tensor.dtype.is_floating_point or not held.name.endswith(_WEIGHTS):
        return told
    for width, height in _FEATURES:
        sides = getattr(module, width, None), getattr(module, height, None)
        if isinstance(sides[0], int) and isinstance(sides[1], int):
            return max(told, sides[0] * sides[1])
    return told


class _Cut:
    """Where a module is cut into blocks."""

    def __init__(self, root: nn.Module, own: dict[str, int]) -> None:
        self._own = own
        self._below: dict[str, int] = defaultdict(int)  # with everything inside
        for path, size in own.items():
            for above in upwards(path):
                self._below[above] += size
        self._whole = self._below[""]
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._named = {
            name
            for module in root.modules()
            for hint in _HINTS
            for name in getattr(module, hint, None) or ()
        }
        self._heads: set[str] = set()
        self._mark(root)

    def homes(self) -> dict[str, str]:
        """For each leaf, the path of its block: the head it lies in, or itself."""
        return {
            leaf: next((above for above in upwards(leaf) if above in self._heads), leaf)
            for leaf in self._own
        }

    def _mark(self, module: nn.Module) -> None:
        blocks = self._blocks_in(module)
        for child in self._weighty(module):
            path = self._paths[id(child)]
            if child in blocks and not self._gives_way(child, self._below[path]):
                self._heads.add(path)
            else:
                self._mark(child)

    def _gives_way(self, block: nn.Module, size: int) -> bool:
        """Whether the blocks inside are the better units: they are smaller, or they are named."""
        if size > self._whole / _WHOLE and self._holds_blocks(block):
            return True
        inside = (each for each in block.modules() if each is not block)
        finer = any(map(self._is_named, inside))
        return finer and (not self._is_named(block) or size > self._whole / _COARSE)

    def _blocks_in(self, module: nn.Module) -> list[nn.Module]:
        """The children of `module` that are blocks: by their class, or as members of a list."""
        children = self._weighty(module)
        named = [child for child in children if self._is_named(child)]
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            return named
        if not all(any(self._weighty(child)) for child in children):
            return named
        alike = len({type(child) for child in children}) == 1
        return children if alike or not any(map(self._holds_blocks, children)) else named

    def _is_named(self, module: nn.Module) -> bool:
        return type(module).__name__ in self._named

    def _holds_blocks(self, module: nn.Module) -> bool:
        return bool(self._blocks_in(module)) or any(
            self._holds_blocks(child) for child in self._weighty(module)
        )

    def _weighty(self, module: nn.Module) -> list[nn.Module]:
        """Children that own weights, or have such below them."""
        return [child for child in module.children() if self._below.get(self._paths[id(child)])]
