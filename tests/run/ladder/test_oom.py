"""Which errors mean that a device is out of memory."""

from __future__ import annotations

import pytest
import torch

from tightfit.card.virtual.faults import Form, exception_of
from tightfit.errors import Cancelled, MemoryShortage
from tightfit.run.ladder import is_device_oom
from tightfit.run.ladder.oom import device_oom_behind

OOM_FORMS = [form for form in Form if form is not Form.ILLEGAL_ACCESS]
OOM_TEXTS = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 5.80 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
    "HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.98 GiB total capacity)",
    "HIP error: out of memory",
    "XPU out of memory. Tried to allocate 1.00 GiB",
    "MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 384.00 KB)",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuSOLVER error: CUSOLVER_STATUS_ALLOC_FAILED",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "miopenStatusAllocFailed",
    "UR backend failed. UR backend returns:39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "Triton Error [CUDA]: out of memory",
]
OTHER_TEXTS = [
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)",
    "UR backend returns:3 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    "CUDA error: out of memory in cudaHostAlloc",
    "mat1 and mat2 shapes cannot be multiplied (3x4 and 3x4)",
    "Expected all tensors to be on the same device",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "out of range",
]


@pytest.mark.parametrize("form", OOM_FORMS)
def test_o06_every_form_of_the_virtual_card_is_out_of_memory(form: Form) -> None:
    """Whatever type and text it comes as."""
    assert is_device_oom(exception_of(form, want=5, text="full"))


@pytest.mark.parametrize("text", OOM_TEXTS)
def test_o06_texts_of_drivers_and_libraries_are_known(text: str) -> None:
    """They arrive as plain RuntimeErrors."""
    assert is_device_oom(RuntimeError(text))


@pytest.mark.parametrize("text", OTHER_TEXTS)
def test_o06_other_failures_are_not_out_of_memory(text: str) -> None:
    """Broken devices, host memory and wrong shapes are not cured by a smaller tile."""
    assert not is_device_oom(RuntimeError(text))
    assert device_oom_behind(RuntimeError(text)) is None


def test_o06_an_illegal_access_is_not_out_of_memory() -> None:
    """Though it has the type that an out-of-memory may have."""
    assert not is_device_oom(exception_of(Form.ILLEGAL_ACCESS, want=5, text=""))


@pytest.mark.parametrize(
    "error",
    [MemoryError("host"), ValueError("CUDA out of memory"), KeyboardInterrupt(), OSError(12, "no")],
)
def test_other_types_are_not_out_of_memory(error: BaseException) -> None:
    """The host's memory is another matter, and a text alone proves nothing."""
    assert not is_device_oom(error)


def test_a_code_says_out_of_memory_where_the_text_does_not() -> None:
    """An AcceleratorError carries the driver's number."""
    error = torch.AcceleratorError("CUDA error: something in another language")
    assert not is_device_oom(error)
    error.error_code = 2
    assert is_device_oom(error)


def test_not_supported_is_out_of_memory_only_below_the_learnt_workspace() -> None:
    """cuDNN says so when it cannot get its workspace, and also when it cannot do the job."""
    error = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")
    assert is_device_oom(error, free=100, workspace=200)
    assert not is_device_oom(error, free=300, workspace=200)
    assert not is_device_oom(error, free=100)


def raised(raising: object) -> BaseException:
    try:
        raising()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError


def replaced(by: BaseException) -> BaseException:
    """An error that took the place of an out-of-memory, as a failing `finally` does."""

    def work() -> None:
        try:
            raise torch.OutOfMemoryError("full")
        finally:
            raise by

    return raised(work)


def wrapped(hidden: bool) -> BaseException:
    """A library's own error, raised from an out-of-memory."""

    def work() -> None:
        try:
            raise torch.OutOfMemoryError("full")
        except torch.OutOfMemoryError as error:
            if hidden:
                raise RuntimeError("decode failed") from None
            raise RuntimeError("decode failed") from error

    return raised(work)


def test_o08_an_error_of_the_clean_up_does_not_hide_the_first() -> None:
    """The out-of-memory is found behind what replaced it."""
    oom = device_oom_behind(replaced(AssertionError("unlocked twice")))
    assert isinstance(oom, torch.OutOfMemoryError)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_library_that_wraps_the_error_does_not_hide_it(hidden: bool) -> None:
    """`raise … from error`, and `from None` too."""
    assert isinstance(device_oom_behind(wrapped(hidden)), torch.OutOfMemoryError)


def test_an_out_of_memory_in_a_group_is_found() -> None:
    """Task groups raise groups."""
    oom = torch.OutOfMemoryError("full")
    assert device_oom_behind(ExceptionGroup("tasks", [ValueError("x"), oom])) is oom


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        Cancelled("stop"),
        MemoryShortage("already reported"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_what_must_not_be_retried_is_not_although_memory_ran_out_before(
    error: BaseException,
) -> None:
    """A request to stop, a final report and a broken device stand for themselves."""
    assert device_oom_behind(replaced(error)) is None


def test_what_the_caller_was_handling_is_not_what_happened() -> None:
    """Called in a handler of an out-of-memory, another error is that error."""
    outside = torch.OutOfMemoryError("the caller's")
    own, oom = ValueError("a shape"), torch.OutOfMemoryError("full")
    own.__context__ = oom.__context__ = outside
    assert device_oom_behind(own) is outside
    assert device_oom_behind(own, outside=outside) is None
    own.__context__ = oom
    assert device_oom_behind(own, outside=outside) is oom
