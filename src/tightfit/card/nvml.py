"""What NVIDIA's management library knows of the devices: also what other processes hold.

It numbers devices by bus id, and CUDA by its own rules: `visible` and `match` bring the two
together by UUID and bus id, and say None rather than guess.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # the inode that Linux gives the machine's own one


@dataclass(frozen=True)
class Process:
    """One process on a device.

    Attributes:
        pid: in the machine's own numbering, which a container does not share.
        used: bytes; None where the driver hides them.
        name: None where it cannot be known: the process is gone, or belongs to another container.
    """

    pid: int
    used: int | None
    name: str | None


@dataclass(frozen=True)
class Device:
    """One device as NVML sees it; sizes in bytes, None what it does not tell.

    Attributes:
        index: NVML's own number.
        uuid: ``GPU-…``.
        bus_id: ``domain:bus:device.function`` in lower case.
        total, used, free: of the whole device; used + free = total.
        driver: the driver's version.
        cuda_driver: the newest CUDA version that the driver speaks, as (major, minor).
        link_generation, link_width: of the PCIe link now; an idle link lowers its generation.
        link_generation_max, link_width_max: the most that device and slot can together.
        processes: who is on it, this process included.
    """

    index: int
    name: str | None
    uuid: str | None
    bus_id: str | None
    total: int | None
    used: int | None
    free: int | None
    driver: str | None
    cuda_driver: tuple[int, int] | None
    link_generation: int | None
    link_width: int | None
    link_generation_max: int | None
    link_width_max: int | None
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Answer:
    """All that NVML said.

    Attributes:
        devices: in NVML's order.
        driver, cuda_driver: as in `Device`; None without a driver.
        problem: why there is no answer, for people; None where there is one.
    """

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    cuda_driver: tuple[int, int] | None = None
    problem: str | None = None


def devices(library: Any = None) -> tuple[Device, ...]:
    """The devices; none where there is no driver. `library` stands in for pynvml."""
    return ask(library).devices


def ask(library: Any = None) -> Answer:
    """Ask once; never raises, whatever is missing or broken. `library` stands in for pynvml."""
    try:
        nvml = _library() if library is None else library
        nvml.nvmlInit()
    except Exception as error:  # its errors are its own, and differ between versions
        return Answer(problem=_sentence(error))
    try:
        driver = _text(_tried(nvml, "nvmlSystemGetDriverVersion"))
        version = _tried(nvml, "nvmlSystemGetCudaDriverVersion")
        cuda = None if version is None else (version // 1000, version % 1000 // 10)
        count = nvml.nvmlDeviceGetCount()
        found = (_device(nvml, index, driver, cuda) for index in range(count))
        return Answer(tuple(each for each in found if each is not None), driver, cuda)
    except Exception as error:
        return Answer(problem=_sentence(error))
    finally:
        _tried(nvml, "nvmlShutdown")


def visible(
    found: Sequence[Device], listed: str | None, *, order: str | None = None
) -> tuple[Device, ...] | None:
    """The devices that CUDA shows, in its order; None where that cannot be known.

    Args:
        listed: CUDA_VISIBLE_DEVICES; None if it is not set.
        order: CUDA_DEVICE_ORDER. Without ``PCI_BUS_ID`` numbers begin with the fastest device,
            by a rule that CUDA keeps to itself: then only UUIDs, or a single device, are sure.

    As CUDA does, the list ends before the first entry that names no device.
    """
    numbered = _numbered(found, order)
    if listed is None:
        return numbered
    entries = [entry.strip() for entry in listed.split(",")]
    if entries[0].upper().startswith("MIG"):
        return None
    if entries[0].upper().startswith("GPU-"):
        return _distinct(_by_uuid(found, entries))
    if not entries[0].isdigit():
        return ()  # nothing is shown, in whatever order: "", -1, none
    return None if numbered is None else _distinct(_by_number(numbered, entries))


def match(
    found: Sequence[Device], *, uuid: str | None = None, bus_id: str | None = None
) -> Device | None:
    """The device that another library knows by `uuid` (with or without ``GPU-``) or `bus_id`.

    The bus id counts only where no UUID is known: a slice of a device has its own UUID on the
    bus id of the whole, and the figures of the whole are not its own.
    """
    if uuid is not None:
        same = [each for each in found if _bare(each.uuid) == _bare(uuid)]
    elif bus_id is not None:
        same = [each for each in found if each.bus_id == tidy_bus_id(bus_id)]
    else:
        same = []
    return same[0] if len(same) == 1 else None


def tidy_bus_id(text: str) -> str:
    """``0000:41:00.0`` and ``00000000:41:00.0`` are the same place."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.rjust(8, '0')}:{rest}"


def _library() -> Any:
    import pynvml

    return pynvml


def _device(
    nvml: Any, index: int, driver: str | None, cuda: tuple[int, int] | None
) -> Device | None:
    handle = _tried(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return None
    memory = _tried(nvml, "nvmlDeviceGetMemoryInfo", handle)
    bus = _text(getattr(_tried(nvml, "nvmlDeviceGetPciInfo", handle), "busId", None))
    return Device(
        index=index,
        name=_text(_tried(nvml, "nvmlDeviceGetName", handle)),
        uuid=_text(_tried(nvml, "nvmlDeviceGetUUID", handle)),
        bus_id=None if bus is None else tidy_bus_id(bus),
        total=None if memory is None else int(memory.total),
        used=None if memory is None else int(memory.total) - int(memory.free),
        free=None if memory is None else int(memory.free),
        driver=driver,
        cuda_driver=cuda,
        link_generation=_tried(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        link_width=_tried(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        link_generation_max=_tried(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        link_width_max=_tried(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[Process, ...]:
    """Those that compute and those that draw; one that does both counts once."""
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for entry in _tried(nvml, f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
            size = entry.usedGpuMemory
            if size is not None or entry.pid not in used:
                used[entry.pid] = None if size is None else int(size)
    named = pids_are_ours(used)
    return tuple(Process(pid, size, _name(pid) if named else None) for pid, size in used.items())


def _name(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None


def pids_are_ours(listed: Collection[int]) -> bool:
    """Whether the driver counts processes as this one does, of which it listed those numbers.

    A container has its own count, and most drivers go on with the machine's; a list that has this
    process in it is in our count.
    """
    return os.getpid() in listed or _counts_for_the_machine()


def _counts_for_the_machine() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return not Path("/proc").exists()


def _tried(nvml: Any, name: str, *arguments: Any) -> Any:
    """What the call answers; None where the library, the driver or the device has no such thing."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:  # "not supported" is an error of its own in NVML, as is "no permission"
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _sentence(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "nvidia-ml-py is not installed"
    return str(error) or type(error).__name__


def _bare(uuid: str | None) -> str | None:
    return None if uuid is None else uuid.lower().removeprefix("gpu-")


def _by_uuid(found: Sequence[Device], entries: Sequence[str]) -> Iterator[Device]:
    """By UUID, or by a beginning that only one device has."""
    for entry in entries:
        same = [each for each in found if each.uuid and each.uuid.lower().startswith(entry.lower())]
        if len(same) != 1:
            return
        yield same[0]


def _by_number(numbered: Sequence[Device], entries: Sequence[str]) -> Iterator[Device]:
    for entry in entries:
        if not entry.isdigit() or int(entry) >= len(numbered):
            return
        yield numbered[int(entry)]


def _distinct(chosen: Iterable[Device]) -> tuple[Device, ...]:
    """A device that is listed twice hides them all."""
    listed = tuple(chosen)
    return listed if len(set(listed)) == len(listed) else ()


def _numbered(found: Sequence[Device], order: str | None) -> tuple[Device, ...] | None:
    """The devices as CUDA counts them; None where only CUDA knows."""
    if len(found) < 2:
        return tuple(found)
    if order != "PCI_BUS_ID" or any(each.bus_id is None for each in found):
        return None
    return tuple(sorted(found, key=lambda each: each.bus_id or ""))
