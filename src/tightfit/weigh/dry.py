"""What a call will need, found by running it on the meta device: shapes without values."""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

# The first operator on the meta device imports this, in the frames of whoever called it; import
# machinery keeps those frames, and the tensors in them, until the collector comes by.
import torch._dynamo
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.weigh.shapes import Shapes, tensors_in
from tightfit.weigh.shells import has_wrapper

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


@dataclass(frozen=True)
class Fused:
    """A call that real cards make by one kernel, where PyTorch's code for shapes makes many.

    Attributes:
        name: of the kernel.
        given: tensors as `Call` counts them.
        all: every tensor that it reads.
        made: its result.
        flops: its operations.
    """

    name: str
    given: list[torch.Tensor]
    all: list[torch.Tensor]
    made: torch.Tensor
    flops: int = 0


class Onlooker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator, but those that make the result of a fused kernel."""

    looks_away = False

    @abstractmethod
    def see(self, kernel: Fused) -> None:
        """Such a kernel has run."""


def dry_run(call: Callable[[], object], *, onlooker: Onlooker | None = None) -> DryRun:
    """Run `call`, whose tensors lie on the meta device, and write down what it allocates.

    What exists before (weights, inputs) does not count; the result does. Attention and RMS norms
    are taken as the fused kernels that real cards run. Scratch inside an operator is invisible
    here: see `weigh.workspace`. What an `onlooker` sees changes nothing.
    """
    books = _LiveBytes()
    with torch.no_grad(), FusedKernels(books, onlooker), books, onlooker or nullcontext():
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
        kwargs = kwargs or {}
        given = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        if has_wrapper(types, given):
            return NotImplemented
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


class FusedKernels(TorchFunctionMode):
    """On the meta device, attention and RMS norms are one kernel each, as on real cards."""

    def __init__(self, books: _LiveBytes | None, onlooker: Onlooker | None) -> None:
        super().__init__()
        self._books = books
        self._onlooker = onlooker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        make = _KERNELS.get(func)
        kernel = None if make is None else self._made(make, args, kwargs)
        return func(*args, **kwargs) if kernel is None else kernel.made

    def _made(self, make: _Kernel, args: Any, kwargs: Any) -> Fused | None:
        """The books see how the result comes to be, and an onlooker sees the kernel."""
        onlooker = self._onlooker
        if onlooker is not None:
            onlooker.looks_away = True
        try:
            kernel = make(args, kwargs)
        finally:
            if onlooker is not None:
                onlooker.looks_away = False
        if kernel is not None and self._books is not None:
            self._books.note(kernel.name, kernel.given, [kernel.made])
            self._books.flops += kernel.flops
        if kernel is not None and onlooker is not None:
            onlooker.see(kernel)
        return kernel


def _attention(args: Any, kwargs: Any) -> Fused | None:
    given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
    query, value = given.get("query"), given.get("value")
    if query is None or value is None or query.device.type != "meta":
        return None
    made = _laid_out_as(query, (*query.shape[:-1], value.shape[-1]))
    pairs = math.prod(query.shape[:-1]) * value.shape[-2]
    flops = 2 * pairs * (query.shape[-1] + value.shape[-1])
    return Fused(ATTENTION, [query, value], tensors_in(tuple(given.values())), made, flops)


def _rms_norm(args: Any, kwargs: Any) -> Fused | None:
    given = dict(zip(("input", "normalized_shape", "weight"), args, strict=False)) | kwargs
    source, weight = given["input"], given.get("weight")
    if source.device.type != "meta" or (weight is not None and weight.dtype != source.dtype):
        return None
    made = torch.empty_like(source, memory_format=torch.contiguous_format)
    return Fused("rms_norm", [source], tensors_in((source, weight)), made)


_Kernel = Callable[[Any, Any], Fused | None]
_KERNELS: dict[Any, _Kernel] = {
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.nn.functional.rms_norm: _rms_norm,
}


def _laid_out_as(query: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor whose axes lie in memory in the order of those of `query`.

    Attention kernels write so: heads that were split off the last axis come back as a view.
    """
    order = sorted(range(query.dim()), key=query.stride, reverse=True)
    return torch.empty_permuted(shape, order, dtype=query.dtype, device=query.device)
