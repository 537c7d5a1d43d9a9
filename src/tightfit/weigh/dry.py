"""What a call will need, found by running it on the meta device: shapes without values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

# The first operator on the meta device imports this, in the frames of whoever called it; import
# machinery keeps those frames, and the tensors in them, until the collector comes by.
import torch._dynamo
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.weigh.shapes import Shapes, tensors_in

ATTENTION = "scaled_dot_product_attention"


class Step(NamedTuple):
    """One move of memory: tensor `key` comes with `size` bytes, or goes (size 0)."""

    key: int
    size: int


@dataclass(frozen=True)
class Call:
    """An operator that made a new tensor.

    Attributes:
        name: of the operator, such as ``convolution``.
        weight: the shape of its second tensor: kernels have their own needs.
        reads: bytes of its first tensor.
        writes: bytes of what it made.
        after: its tensors are there once so many steps are done.
    """

    name: str
    weight: tuple[int, ...]
    reads: int
    writes: int
    after: int


@dataclass(frozen=True)
class DryRun:
    """What one call on meta tensors did.

    Attributes:
        peak: the most bytes of new tensors that lived at once.
        at: the operator that was running then.
        steps: every tensor that came and went, in order.
        calls: the operators that made them, in order.
        flops: of the matrix products, convolutions and attention, one multiply-add as two.
    """

    peak: int
    at: str
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    flops: int


def dry_run(call: Callable[[], object]) -> DryRun:
    """Run `call`, whose tensors lie on the meta device, and write down what it allocates.

    What exists before (weights, inputs) does not count; the result does. Attention and RMS norms
    are taken as the fused kernels that real cards run. Scratch inside an operator is invisible
    here: see `weigh.workspace`.
    """
    books = _LiveBytes()
    with torch.no_grad(), _Fused(books), books:
        result = call()
    del result
    return DryRun(books.peak, books.at, tuple(books.steps), tuple(books.calls), books.flops)


def dry_peak(call: Callable[[], object]) -> int:
    """`DryRun.peak` alone."""
    return dry_run(call).peak


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages on the meta device from their first appearance to their end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.flops = 0
        self.at = ""
        self.steps: list[Step] = []
        self.calls: list[Call] = []
        self._sizes: dict[int, int] = {}  # by address, which is used again; 0 for given ones
        self._keys: dict[int, int] = {}
        self._given: list[torch.UntypedStorage] = []  # kept: their addresses must stay theirs
        self._made = 0
        self._shapes = Shapes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        given = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        for tensor in given:
            self._count(tensor, "")
        result, flops = self._shapes.call(func, args, kwargs)
        self.flops += flops
        name = func.overloadpacket.__name__
        before = self._made
        made = tensors_in(result)
        for tensor in made:
            self._count(tensor, name)
        if self._made > before:
            self.note(name, given, made)
        return result

    def note(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Write down an operator."""
        weight = tuple(given[1].shape) if len(given) > 1 else ()
        reads = given[0].nbytes if given else 0
        self.calls.append(Call(name, weight, reads, sum(t.nbytes for t in made), len(self.steps)))

    def _count(self, tensor: torch.Tensor, maker: str) -> None:
        """A tensor is seen: made by operator `maker`, or (empty) there before."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._sizes or tensor.device.type != "meta":
            return
        size = self._sizes[address] = storage.nbytes() if maker else 0
        if not maker:
            self._given.append(storage)
            return
        if size:
            self._made += 1
            self._keys[address] = self._made
            self.steps.append(Step(self._made, size))
            self.live += size
            if self.live > self.peak:
                self.peak, self.at = self.live, maker
        weakref.finalize(storage, self._drop, address)

    def _drop(self, address: int) -> None:
        size = self._sizes.pop(address)
        if size:
            self.live -= size
            self.steps.append(Step(self._keys.pop(address), 0))


class _Fused(TorchFunctionMode):
    def __init__(self, books: _LiveBytes) -> None:
        super().__init__()
        self._books = books

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            query, value = given.get("query"), given.get("value")
            if query is not None and value is not None and query.device.type == "meta":
                made = _laid_out_as(query, (*query.shape[:-1], value.shape[-1]))
                self._books.note(ATTENTION, [query, value], [made])
                pairs = math.prod(query.shape[:-1]) * value.shape[-2]
                self._books.flops += 2 * pairs * (query.shape[-1] + value.shape[-1])
                return made
        if func is torch.nn.functional.rms_norm:
            given = dict(zip(("input", "normalized_shape", "weight"), args, strict=False)) | kwargs
            source, weight = given["input"], given.get("weight")
            same = weight is None or weight.dtype == source.dtype
            if source.device.type == "meta" and same:
                made = torch.empty_like(source, memory_format=torch.contiguous_format)
                self._books.note("rms_norm", [source], [made])
                return made
        return func(*args, **kwargs)


def _laid_out_as(query: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor whose axes lie in memory in the order of those of `query`.

    Attention kernels write so: heads that were split off the last axis come back as a view.
    """
    order = sorted(range(query.dim()), key=query.stride, reverse=True)
    return torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)
