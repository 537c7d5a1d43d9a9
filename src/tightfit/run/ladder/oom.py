"""Which errors mean that the device is out of memory, and which only look like it."""

from __future__ import annotations

import torch

_TEXTS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "hip out of memory",
    "hip error: out of memory",
    "xpu out of memory",
    "mps backend out of memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "hipblas_status_alloc_failed",
    "miopenstatusallocfailed",
    "out_of_device_memory",
    "cusolver_status_alloc_failed",
)
_HOST_TEXTS = ("defaultcpuallocator", "out_of_host_memory", "cudahostalloc", "pin_memory")
_HIDDEN = "cudnn_status_not_supported"


def is_device_oom(
    error: BaseException, *, free: int | None = None, workspace: int | None = None
) -> bool:
    """Whether `error` says that a device ran out of memory, in any of the forms seen so far.

    Host memory, illegal accesses and shape errors do not count. ``CUDNN_STATUS_NOT_SUPPORTED``
    is a refused workspace only when `free` bytes are fewer than the learnt `workspace`.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if any(host in text for host in _HOST_TEXTS):
        return False
    if any(known in text for known in _TEXTS):
        return True
    if _HIDDEN in text and free is not None and workspace is not None:
        return free < workspace
    return False
