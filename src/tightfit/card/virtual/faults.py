"""The switches that make a virtual card misbehave as real ones were reported to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import torch


class Form(StrEnum):
    """The forms in which drivers and libraries have been seen to say "out of memory"."""

    TORCH = "torch"
    HIP = "hip"
    CUDA_TEXT = "cuda-text"
    CUDNN = "cudnn"
    CUBLAS = "cublas"
    ACCELERATOR = "accelerator"
    ILLEGAL_ACCESS = "illegal-access"  # not out of memory: must never be taken for it


_TEXTS = {
    Form.HIP: "HIP out of memory. Tried to allocate {want} bytes.",
    Form.CUDA_TEXT: "CUDA error: out of memory",
    Form.CUDNN: "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    Form.CUBLAS: "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    Form.ACCELERATOR: "CUDA error: out of memory (AcceleratorError)",
    Form.ILLEGAL_ACCESS: "CUDA error: an illegal memory access was encountered",
}


def exception_of(form: Form, *, want: int, text: str) -> Exception:
    """The exception that a driver would raise in this form."""
    if form is Form.TORCH:
        return torch.OutOfMemoryError(text)
    message = _TEXTS[form].format(want=want)
    if form in (Form.ACCELERATOR, Form.ILLEGAL_ACCESS) and hasattr(torch, "AcceleratorError"):
        error: Any = torch.AcceleratorError(message)
        error.error_code = 2 if form is Form.ACCELERATOR else 700
        raised: Exception = error
        return raised
    return RuntimeError(message)


@dataclass(eq=False)
class Planned:
    """One fault that waits for its allocation.

    Attributes:
        after: how many further allocations succeed before it strikes.
        form: what is raised.
        late: kept back until the next synchronisation, as asynchronous devices do.
    """

    after: int
    form: Form = Form.TORCH
    late: bool = False


@dataclass
class Faults:
    """What is wrong with a virtual card; everything is off by default.

    Attributes:
        planned: faults by allocation count.
        delayed_frees: a free counts only after a synchronisation.
        spill: requests over the budget succeed and are counted in `VirtualCard.spilled`.
        max_allocation: the largest single request in bytes.
        element_ceiling: operators with a larger output return zeros, without an error.
        workspace: hidden bytes an operator needs, given its name and its input bytes.
        silent_workspace: a refused workspace changes the algorithm (other bits) and only the
            count of refusals tells; otherwise it is an out-of-memory error.
        on_allocate: called before each allocation with (operator name, bytes).
        lanes: copies of lanes arrive when somebody waits for them; what lacks a wait is poisoned
            and kept in `VirtualCard.hazards`, or raised (``strict``): see `card.virtual.lanes`.
        lane_seed: with `lanes`, copies also arrive by chance before they are waited for.
    """

    planned: list[Planned] = field(default_factory=list)
    delayed_frees: bool = False
    spill: bool = False
    max_allocation: int | None = None
    element_ceiling: int | None = None
    workspace: Callable[[str, int], int] | None = None
    silent_workspace: bool = False
    on_allocate: Callable[[str, int], None] | None = None
    lanes: bool | Literal["strict"] = False
    lane_seed: int | None = None

    def due(self) -> Planned | None:
        """Count one allocation; the planned fault that strikes it, if any."""
        struck = None
        for fault in list(self.planned):
            if fault.after > 0:
                fault.after -= 1
            elif struck is None:
                struck = fault
                self.planned.remove(fault)
        return struck
