"""A call of a batch in two: the items of each half by themselves, and what they give, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.errors import UsageError
from tightfit.run.fitting.need import Call, result_of

_ALONG = {
    "split": 2,
    "split_with_sizes": 2,
    "unsafe_split": 2,
    "select": 1,
    "unbind": 1,
    "slice": 1,
    "index_select": 1,
    "cat": 1,
    "stack": 1,
    "flip": 1,
    "roll": 2,
    "sum": 1,
    "mean": 1,
    "index": 1,
}
"""Operators that take items of an axis apart, mix them, or join others to them; at which place they
are told the axis."""


@dataclass(frozen=True)
class Halves:
    """How a call is parted.

    Attributes:
        batch: items of the whole, along the first axis of whatever has that many.
        whole: the call.
        gives: bytes of the result.
    """

    batch: int
    whole: Call
    gives: int = 0

    @classmethod
    def of(cls, module: nn.Module, call: Call) -> Halves | None:
        """None where the call has one item, or where two halves may not be what the whole is.

        Every tensor that is given has the batch along its first axis, or none of it, and what comes
        back likewise; no operator looks across items, none draws random numbers, and nothing is
        given that may hide tensors. Told by runs of the shapes on the meta device, which leave
        nothing behind.
        """
        batch = _batch_of(call)
        if batch < 2 or call.method != "forward" or not call.is_plain:
            return None
        made = cls(batch, call)
        try:
            with _Apart(batch) as apart:
                whole = result_of(module, call)
            if apart.mixes:
                return None
            for part in made.parts():
                if not _is_part(result_of(module, part), whole, batch, _batch_of(part)):
                    return None
        except UsageError:
            raise
        except Exception:  # the network's own: it cannot be run so
            return None
        tensors = (leaf for leaf in tree_flatten(whole)[0] if isinstance(leaf, torch.Tensor))
        return replace(made, gives=sum(round_up(leaf.nbytes, ALIGNMENT) for leaf in tensors))

    @classmethod
    def like(cls, call: Call) -> Halves:
        """Of a call like one that was looked at before."""
        return cls(_batch_of(call), call)

    @property
    def smallest(self) -> Call:
        """What is left of it where halves are parted again, to the last item."""
        return self._part(0, 1)

    def parts(self) -> tuple[Call, Call]:
        """The two calls; their tensors are views of the whole's."""
        middle = (self.batch + 1) // 2
        return self._part(0, middle), self._part(middle, self.batch)

    def join(self, values: Sequence[Any]) -> Any:
        """What the whole would have given, from what the parts did; new where it is of the batch.

        `values` are let go on the way, where nobody else has them.
        """
        sizes = [_batch_of(part) for part in self.parts()]
        flat = [tree_flatten(value) for value in values]
        spec = flat[0][1]
        joined = []
        for leaves in zip(*(leaves for leaves, _ in flat), strict=True):
            of_batch = all(
                isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size
                for leaf, size in zip(leaves, sizes, strict=True)
            )
            joined.append(torch.cat(leaves) if of_batch else leaves[0])
        return tree_unflatten(joined, spec)

    def _part(self, start: int, end: int) -> Call:
        def part(leaf: object) -> object:
            if isinstance(leaf, torch.Tensor) and _has(leaf, self.batch):
                return leaf[start:end]
            return leaf

        args, kwargs = tree_map(part, (self.whole.args, dict(self.whole.kwargs)))
        return Call(self.whole.method, args, kwargs)


class _Apart(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks whether items of a batch go their own ways.

    Attributes:
        mixes: one did not, or random numbers were drawn.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._batch = batch
        self.mixes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it as it is."""
        del types
        if torch.Tag.nondeterministic_seeded in func.tags or self._mixes(func, args, kwargs or {}):
            self.mixes = True
        return func(*args, **(kwargs or {}))

    def _mixes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        name = func.overloadpacket.__name__
        if name not in _ALONG or not args:
            return False
        given = args[0] if isinstance(args[0], (list, tuple)) else (args[0],)
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        if not any(_has(each, self._batch) for each in tensors):
            return False
        if name == "index":
            return bool(args[1]) and args[1][0] is not None
        at = _ALONG[name]
        axis = args[at] if len(args) > at else kwargs.get("dim", kwargs.get("dims", 0))
        axes = axis if isinstance(axis, (list, tuple)) else (axis,)
        if not any(each in (None, 0, -tensors[0].dim()) for each in axes):
            return False
        return not (name == "slice" and _takes_all(args, kwargs, self._batch))


def _takes_all(args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> bool:
    start = args[2] if len(args) > 2 else kwargs.get("start")
    end = args[3] if len(args) > 3 else kwargs.get("end")
    step = args[4] if len(args) > 4 else kwargs.get("step", 1)
    return start in (None, 0) and (end is None or end >= batch) and step == 1


def _batch_of(call: Call) -> int:
    """Items of the first tensor that has any; 0 where there is none."""
    found = (leaf for leaf in call.given if isinstance(leaf, torch.Tensor) and leaf.dim() > 1)
    first = next(found, None)
    return 0 if first is None else first.shape[0]


def _has(tensor: torch.Tensor, batch: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == batch


def _is_part(part: Any, whole: Any, batch: int, items: int) -> bool:
    """Whether all tensors have the same shapes, but for the items of the batch where they have."""
    (some, spec), (every, whole_spec) = tree_flatten(part), tree_flatten(whole)
    if spec != whole_spec:
        return False
    of_batch = 0
    for one, other in zip(some, every, strict=True):
        if isinstance(one, torch.Tensor) != isinstance(other, torch.Tensor):
            return False
        if not isinstance(one, torch.Tensor):
            if one is not None and not isinstance(one, (bool, int, float, str)):
                return False
            continue
        if one.dtype != other.dtype or one.dim() != other.dim() or not one.dim():
            return False
        if one.shape[0] != items or other.shape[0] != batch or one.shape[1:] != other.shape[1:]:
            return False
        of_batch += 1
    return of_batch > 0
