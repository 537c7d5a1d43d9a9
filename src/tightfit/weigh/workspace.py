"""The scratch inside operators, which no dry run sees: a table for CUDA, and what was learnt.

Measured on an H200 (torch 2.11, cuDNN 9, fp16 and bf16, contiguous tensors): a convolution takes
its input, its output and its weights once more (all are copied to the channels-last order that the
tensor cores read). A pointwise one and a 2-D one of few channels take nothing. With these rows and
41 MiB for the libraries' own workspaces, the peaks of whole encodes and decodes come out within
1 %.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tightfit.units import MIB

LIBRARIES = 41 * MIB
"""What matrix and convolution libraries hold once they have worked (cuBLAS takes 32 MiB)."""
_ATTENTION = "scaled_dot_product_attention"
_CONVOLUTIONS = ("convolution", "_convolution", "cudnn_convolution")
_PRODUCTS = ("mm", "addmm", "linear")
_OTHERS = (
    "rms_norm",
    "native_group_norm",
    "native_layer_norm",
    "native_batch_norm",
    "_softmax",
    "bmm",
)
_ELEMENT = 2
"""Bytes of one element of a weight as models mostly compute; its shape alone is known."""
_THIN = 8
"""2-D convolutions of fewer input channels have kernels of their own, which copy nothing."""
_FUSED_HEAD = 128
"""Attention keeps its sums in registers up to this head size; above, in an fp32 copy."""


class Operator(Protocol):
    """What is known of an operator; see `weigh.dry.Call`."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> tuple[int, ...]: ...
    @property
    def reads(self) -> int: ...
    @property
    def writes(self) -> int: ...


class Placed(Operator, Protocol):
    """An operator, and the number of steps after which its result is there."""

    @property
    def after(self) -> int: ...


class Ran(Protocol):
    """What a run allocated; see `weigh.dry.DryRun`."""

    @property
    def steps(self) -> Sequence[tuple[int, int]]: ...
    @property
    def calls(self) -> Sequence[Placed]: ...


@dataclass(frozen=True)
class Workspaces:
    """How much scratch an operator takes, in bytes.

    Attributes:
        table: whether the measured table of CUDA counts; a virtual card has none.
        learnt: scratch per byte of `handled`, by `signature`, from a small real run; it comes
            before the table.
        fixed: bytes held beside it all.
    """

    table: bool = False
    learnt: Mapping[str, float] = field(default_factory=dict)
    fixed: int = 0

    @property
    def told(self) -> Hashable:
        """Equal for two that tell the same of every operator."""
        return self.table, tuple(sorted(self.learnt.items()))

    def of(self, call: Operator) -> int:
        """The scratch of one operator."""
        key = signature(call)
        share = self.learnt.get(key) if key else None
        if share is not None:
            return int(share * handled(call))
        return _tabulated(call) if self.table else 0


CUDA = Workspaces(table=True, fixed=LIBRARIES)
NONE = Workspaces()


def signature(call: Operator) -> str:
    """Operators of one signature share a kernel, whatever the size of the picture.

    Of convolutions and matrix products the weight tells, of attention the size of a head. Empty
    for operators that take no scratch, such as those that go element by element.
    """
    if call.name == _ATTENTION:
        return f"{call.name} {call.weight[-1]}"
    if call.name in _CONVOLUTIONS or call.name in _PRODUCTS:
        return f"{call.name} {'x'.join(map(str, call.weight))}"
    return call.name if call.name in _OTHERS else ""


def handled(call: Operator) -> int:
    """What an operator reads and writes, in bytes; of a convolution also its weights."""
    both = call.reads + call.writes
    return both + _ELEMENT * math.prod(call.weight) if call.name in _CONVOLUTIONS else both


def sequence(run: Ran, workspaces: Workspaces = NONE) -> tuple[tuple[int, int], ...]:
    """Every allocation and free of a run, scratch included, as (key, bytes) or (key, 0).

    An operator's result is there before its scratch, and the scratch goes before the next one.
    What a pointwise convolution takes is a copy of its input, which is there before the result.
    """
    moves: list[tuple[int, int]] = []
    done = 0
    for number, call in enumerate(run.calls):
        scratch = workspaces.of(call)
        if scratch:
            taken = _result_of(run, call, done) if _is_pointwise(call) else call.after
            moves += run.steps[done:taken]
            moves.append((-1 - number, scratch))
            moves += run.steps[taken : call.after]
            moves.append((-1 - number, 0))
            done = call.after
    return (*moves, *run.steps[done:])


def peak_of(moves: Iterable[tuple[int, int]]) -> int:
    """The most bytes that live at once in a sequence of (key, bytes) and (key, 0)."""
    sizes: dict[int, int] = {}
    live = peak = 0
    for key, size in moves:
        if size:
            sizes[key] = size
            live += size
            peak = max(peak, live)
        else:
            live -= sizes.pop(key, 0)
    return peak


def _result_of(run: Ran, call: Placed, done: int) -> int:
    """The step at which the result of `call` comes, at `done` or later."""
    steps = range(done, call.after)
    return max((step for step in steps if run.steps[step][1]), default=call.after)


def _is_pointwise(call: Operator) -> bool:
    return call.name in _CONVOLUTIONS and all(size == 1 for size in call.weight[2:])


def _tabulated(call: Operator) -> int:
    if call.name in _CONVOLUTIONS:
        axes = len(call.weight) - 2
        copies = axes == 3 or (axes == 2 and call.weight[1] >= _THIN)
        return handled(call) if copies and not _is_pointwise(call) else 0
    if call.name == _ATTENTION and call.weight[-1] > _FUSED_HEAD:
        return 2 * call.writes
    return 0
