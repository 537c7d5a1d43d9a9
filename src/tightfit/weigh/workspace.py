"""The scratch inside operators, which no dry run sees: a table for CUDA, and what was learnt.

Measured on an H200 (torch 2.11, cuDNN 9, fp16 and bf16, contiguous tensors): a 2-D convolution
takes twice its input beside its output, a 3-D one its input and its output once more (both are
copied to the channels-last order that the tensor cores read). With these two rows and 41 MiB for
the libraries' own workspaces, the peaks of whole encodes and decodes come out within 2.2 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        learnt: scratch per byte read and written, by `signature`, from a small real run; it comes
            before the table.
        fixed: bytes held beside it all.
    """

    table: bool = False
    learnt: Mapping[str, float] = field(default_factory=dict)
    fixed: int = 0

    def of(self, call: Operator) -> int:
        """The scratch of one operator."""
        key = signature(call)
        share = self.learnt.get(key) if key else None
        if share is not None:
            return int(share * (call.reads + call.writes))
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


def sequence(run: Ran, workspaces: Workspaces = NONE) -> tuple[tuple[int, int], ...]:
    """Every allocation and free of a run, scratch included, as (key, bytes) or (key, 0).

    An operator's result is there before its scratch, and the scratch goes before the next one.
    """
    moves: list[tuple[int, int]] = []
    done = 0
    for number, call in enumerate(run.calls):
        scratch = workspaces.of(call)
        if scratch:
            moves += run.steps[done : call.after]
            done = call.after
            moves += ((-1 - number, scratch), (-1 - number, 0))
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


def _tabulated(call: Operator) -> int:
    if call.name in _CONVOLUTIONS:
        axes = len(call.weight) - 2
        if axes == 2:
            return 2 * call.reads
        return call.reads + call.writes if axes == 3 else 0
    if call.name == _ATTENTION and call.weight[-1] > _FUSED_HEAD:
        return 2 * call.writes
    return 0
