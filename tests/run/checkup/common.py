"""Check-ups that tests begin from."""

from __future__ import annotations

from tightfit.run.checkup import CacheCheck, CardCheck, Checkup
from tightfit.run.checkup.values import (
    DeviceCheck,
    DiskCheck,
    DriverCheck,
    HolderCheck,
    HostCheck,
    LinkCheck,
    TorchCheck,
)
from tightfit.units import GIB, MIB

TORCH = TorchCheck("2.13.0+cu130", "13.0", None, sees_cuda=True, problem=None)
DRIVER = DriverCheck("580.82.07", "13.1", None)
DEVICE = DeviceCheck(
    index=0,
    name="NVIDIA GeForce RTX 3060",
    uuid="GPU-aaaa1111",
    bus_id="00000000:01:00.0",
    card="cuda:0",
    total_bytes=12 * GIB,
    used_bytes=GIB,
    free_bytes=11 * GIB,
    link_generation=4,
    link_lanes=16,
    link_generation_max=4,
    link_lanes_max=16,
    holders=(),
    table="rtx-3060",
)
LINK = LinkCheck(25_000_000_000, 9_000_000_000, 25_200_000_000, "copies of 256.0 MiB")
CARD = CardCheck(
    name="cuda:0",
    kind="cuda",
    simulated=False,
    hardware="NVIDIA GeForce RTX 3060",
    device=0,
    capability="8.6",
    bf16=True,
    allocator="expandable",
    allocator_from="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    total_bytes=12 * GIB,
    used_bytes=GIB,
    free_bytes=11 * GIB,
    allocated_bytes=8 * MIB,
    reserved_bytes=22 * MIB,
    context_bytes=400 * MIB,
    context_source="the driver's list of processes",
    held_by_others_bytes=0,
    link=LINK,
    table="rtx-3060",
    table_memory_bytes_per_s=360_000_000_000,
    table_flops=25_500_000_000_000,
)
HOST = HostCheck(
    ram_bytes=64 * GIB,
    available_bytes=50 * GIB,
    group_limit_bytes=None,
    group_used_bytes=None,
    group_cache_bytes=None,
    pinnable_bytes=50 * GIB,
    lock_limit_bytes=8 * MIB,
    copy_bytes_per_s=10_000_000_000,
    copy_about="64.0 MiB by one thread",
)
GOOD = Checkup(
    tightfit="0.1.0",
    python="3.11.7",
    platform="Linux",
    torch=TORCH,
    driver=DRIVER,
    visible_devices=None,
    device_order=None,
    devices=(DEVICE,),
    cards=(CARD,),
    host=HOST,
    disk=DiskCheck(2_000_000_000, "256.0 MiB of a fresh file"),
    cache=CacheCheck("/home/me/.cache/tightfit", 0, 0),
    libraries={"diffusers": "0.42.1", "nvidia-ml-py": "13.0"},
)


def holder(pid: int, size: int | None, *, ours: bool | None = False) -> HolderCheck:
    """A program on a device."""
    return HolderCheck(pid, "python3" if ours is not None else None, size, ours)
