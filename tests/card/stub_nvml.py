"""A stand-in for pynvml: devices that a test describes, and calls that it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tightfit.units import GIB

NOT_SUPPORTED = RuntimeError("Not Supported")


@dataclass
class StubDevice:
    """What NVML would say of one device; sizes in bytes."""

    name: str = "NVIDIA GeForce RTX 3060"
    uuid: str = "GPU-aaaa1111"
    bus: str = "00000000:01:00.0"
    total: int = 12 * GIB
    free: int = 9 * GIB
    generation: int = 4
    width: int = 16
    width_max: int = 16
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)


class StubNvml:
    """The calls that tightfit makes; those named in `broken` raise."""

    def __init__(self, *devices: StubDevice, broken: tuple[str, ...] = ()) -> None:
        self._devices = devices
        self._broken = broken
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        """Any call may be one that the driver does not support."""
        if name.startswith("nvml") and name in self._broken:
            raise NOT_SUPPORTED
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        """Counted, as the library does."""
        self.open += 1

    def nvmlShutdown(self) -> None:
        """The other end."""
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.82.07"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> StubDevice:
        return self._devices[index]

    def nvmlDeviceGetName(self, device: StubDevice) -> str:
        return device.name

    def nvmlDeviceGetUUID(self, device: StubDevice) -> bytes:
        return device.uuid.encode()

    def nvmlDeviceGetPciInfo(self, device: StubDevice) -> Any:
        return SimpleNamespace(busId=device.bus.encode())

    def nvmlDeviceGetMemoryInfo(self, device: StubDevice) -> Any:
        return SimpleNamespace(
            total=device.total, free=device.free, used=device.total - device.free
        )

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: StubDevice) -> int:
        return device.generation

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: StubDevice) -> int:
        return device.generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: StubDevice) -> int:
        return device.width

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: StubDevice) -> int:
        return device.width_max

    def nvmlDeviceGetComputeRunningProcesses(self, device: StubDevice) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: StubDevice) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.graphics]
