"""What a check-up found: plain values under the names that `tightfit doctor --json` has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tightfit.run.checkup.cache import CacheCheck

CHECKUP_VERSION = 1


@dataclass(frozen=True)
class TorchCheck:
    """PyTorch, as it is installed.

    Attributes:
        version: None where it cannot be imported.
        cuda, hip: what it was built for; None where it was built without.
        sees_cuda: whether it can use a device.
        problem: what it said where something is wrong.
    """

    version: str | None
    cuda: str | None
    hip: str | None
    sees_cuda: bool
    problem: str | None


@dataclass(frozen=True)
class DriverCheck:
    """NVIDIA's driver.

    Attributes:
        version: None where none answers.
        cuda: the newest CUDA that it speaks, such as ``13.1``.
        problem: why none answers.
    """

    version: str | None
    cuda: str | None
    problem: str | None


@dataclass(frozen=True)
class HolderCheck:
    """One process on a device.

    Attributes:
        pid: as the machine counts; a container counts for itself.
        name: None where it cannot be told.
        held_bytes: None where the driver hides it.
        ours: whether it is this process; None where it cannot be told.
    """

    pid: int
    name: str | None
    held_bytes: int | None
    ours: bool | None


@dataclass(frozen=True)
class DeviceCheck:
    """One device as the driver sees it, whether PyTorch uses it or not.

    Attributes:
        index: the driver's number, which is not always CUDA's.
        card: what it is called here (``cuda:0``), if it was opened.
        link_generation, link_lanes: PCIe, now; ``_max``: the most that device and slot can.
        total_bytes, used_bytes, free_bytes: used by everybody.
        holders: who is on it.
        table: its name in the table of known cards.
    """

    index: int
    name: str | None
    uuid: str | None
    bus_id: str | None
    card: str | None
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    link_generation: int | None
    link_lanes: int | None
    link_generation_max: int | None
    link_lanes_max: int | None
    holders: tuple[HolderCheck, ...]
    table: str | None


@dataclass(frozen=True)
class LinkCheck:
    """From the host to a card, in bytes per second.

    Attributes:
        pinned_bytes_per_s, pageable_bytes_per_s: measured; None where they were not.
        table_bytes_per_s: what the table of known cards says of pinned memory.
        about: what was copied, or why nothing was.
    """

    pinned_bytes_per_s: int | None
    pageable_bytes_per_s: int | None
    table_bytes_per_s: int | None
    about: str


@dataclass(frozen=True)
class CardCheck:
    """One card, opened.

    Attributes:
        name, kind: ``cuda:0``, ``cuda``.
        simulated: a virtual card: nothing of it was measured.
        hardware: what the device calls itself.
        device: its number in the driver's list; None where it cannot be matched.
        capability: CUDA's compute capability, such as ``8.9``.
        bf16: whether it computes in bfloat16.
        allocator, allocator_from: which one runs, and who chose it.
        total_bytes, used_bytes, free_bytes: of the whole card; used + free = total.
        allocated_bytes, reserved_bytes: in tensors of this process, and taken by its allocator.
        context_bytes, context_source: what the context of a process costs, and how that is known.
        held_by_others_bytes: by other programs.
        limit_bytes: the most that this process may reserve; None is no limit.
        table: its name in the table of known cards.
        table_memory_bytes_per_s, table_flops: what that table says.
        problem: why it could not be opened; then most figures are unknown.
    """

    name: str
    kind: str
    simulated: bool
    hardware: str | None = None
    device: int | None = None
    capability: str | None = None
    bf16: bool | None = None
    allocator: str | None = None
    allocator_from: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    context_bytes: int | None = None
    context_source: str | None = None
    held_by_others_bytes: int | None = None
    limit_bytes: int | None = None
    link: LinkCheck = field(default_factory=lambda: LinkCheck(None, None, None, "not measured"))
    table: str | None = None
    table_memory_bytes_per_s: int | None = None
    table_flops: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class HostCheck:
    """The host's memory.

    Attributes:
        ram_bytes: of the machine.
        available_bytes: what may be taken now, within the group's limit too.
        group_limit_bytes, group_used_bytes, group_cache_bytes: of the tightest control group with
            a limit; used includes the page cache; None where there is no such group.
        pinnable_bytes: what may be pinned for a CUDA card now.
        lock_limit_bytes: RLIMIT_MEMLOCK; None is no limit.
        copy_bytes_per_s, copy_about: one thread copying memory.
    """

    ram_bytes: int
    available_bytes: int
    group_limit_bytes: int | None
    group_used_bytes: int | None
    group_cache_bytes: int | None
    pinnable_bytes: int
    lock_limit_bytes: int | None
    copy_bytes_per_s: int | None
    copy_about: str


@dataclass(frozen=True)
class DiskCheck:
    """Reading from the disk that our cache folder is on; None where it was not measured."""

    bytes_per_s: int | None
    about: str


@dataclass(frozen=True)
class Advice:
    """Something that could be better.

    Attributes:
        what: what was found, with figures.
        do: the exact command, variable or deed.
    """

    what: str
    do: str


@dataclass(frozen=True)
class Checkup:
    """The whole of it.

    Attributes:
        visible_devices, device_order: what the environment tells CUDA.
        devices: every NVIDIA device that the driver shows.
        cards: those that were opened.
        libraries: name → version; None is not installed.
        advice: the most helpful first.
    """

    tightfit: str
    python: str
    platform: str
    torch: TorchCheck
    driver: DriverCheck
    visible_devices: str | None
    device_order: str | None
    devices: tuple[DeviceCheck, ...]
    cards: tuple[CardCheck, ...]
    host: HostCheck
    disk: DiskCheck
    cache: CacheCheck
    libraries: Mapping[str, str | None]
    advice: tuple[Advice, ...] = ()
    version: int = CHECKUP_VERSION

    def device_of(self, card: CardCheck) -> DeviceCheck | None:
        """The device behind a card."""
        return next((each for each in self.devices if each.index == card.device), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON values, the version first."""
        values = asdict(self)
        return {"version": values.pop("version"), **values}
