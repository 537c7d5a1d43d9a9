"""Which errors mean that the device is out of memory, and which only look like it."""

from __future__ import annotations

import torch

from tightfit.errors import TightfitError
from tightfit.run.ladder.release import chain

_TEXTS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "cuda driver error: out of memory",
    "triton error [cuda]: out of memory",
    "hip out of memory",
    "hip error: out of memory",
    "xpu out of memory",
    "mps backend out of memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "cufft_alloc_failed",
    "hipblas_status_alloc_failed",
    "miopenstatusallocfailed",
    "out_of_device_memory",
    "cusolver_status_alloc_failed",
)
_HOST_TEXTS = ("defaultcpuallocator", "out_of_host_memory", "cudahostalloc", "pin_memory")
_BROKEN_TEXTS = (
    "illegal memory access",
    "illegal instruction",
    "device-side assert",
    "misaligned address",
    "unspecified launch failure",
)
_OUT_OF_MEMORY_CODE = 2  # cudaErrorMemoryAllocation, hipErrorOutOfMemory
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
    if getattr(error, "error_code", None) == _OUT_OF_MEMORY_CODE:
        return True
    if _HIDDEN in text and free is not None and workspace is not None:
        return free < workspace
    return False


def device_oom_behind(
    error: BaseException,
    *,
    free: int | None = None,
    workspace: int | None = None,
    outside: BaseException | None = None,
) -> BaseException | None:
    """The device's out-of-memory that `error` is, or that it took the place of; None if none.

    Clean-up code that fails replaces the error that it cleans up after: an assertion of a lock
    that was given back twice is still an out-of-memory. A device that is broken is not, nor is
    a request to stop, whatever came before. Nor is what happened before we were called: `outside`
    is what our caller was handling then.
    """
    if is_device_oom(error, free=free, workspace=workspace):
        return error
    if not isinstance(error, Exception) or isinstance(error, TightfitError):
        return None
    if any(broken in str(error).lower() for broken in _BROKEN_TEXTS):
        return None
    return next(filter(is_device_oom, chain(error, outside=outside)), None)
