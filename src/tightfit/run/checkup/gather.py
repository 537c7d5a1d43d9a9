"""Gathering a check-up: each part is asked by itself, and a broken one costs no other."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata

from tightfit import __version__
from tightfit.card import nvml
from tightfit.card.bandwidth import disk_rate, host_copy_rate
from tightfit.card.host_memory import HostMemory, read_host_memory
from tightfit.card.known import match_device_name
from tightfit.card.machine import Machine, MeasuredCard
from tightfit.run.checkup.cache import look_at_cache
from tightfit.run.checkup.remedies import remedies
from tightfit.run.checkup.values import (
    CardCheck,
    Checkup,
    DeviceCheck,
    DiskCheck,
    DriverCheck,
    HolderCheck,
    HostCheck,
    TorchCheck,
)
from tightfit.settings import Settings

LIBRARIES = (
    "diffusers",
    "transformers",
    "accelerate",
    "safetensors",
    "gguf",
    "huggingface-hub",
    "peft",
    "triton",
    "bitsandbytes",
    "torchao",
    "nvidia-ml-py",
    "numpy",
    "pillow",
    "av",
)


def check_up(card: str | None = None, *, tell: Callable[[str], None] | None = None) -> Checkup:
    """Look at this machine: some seconds, most of which PyTorch takes to load.

    Args:
        card: look at this one; None is every CUDA card, or the host where there is none.
        tell: told what is being looked at.

    Raises `UsageError` for a `card` that is none. Everything else that is missing or broken is a
    part of the answer.
    """
    say = tell or (lambda _: None)
    settings = Settings.from_environ()
    say("asking the driver")
    before = nvml.ask()
    memory = read_host_memory()
    say("loading PyTorch")
    torch = _look_at_torch()
    say("opening the cards and measuring their links")
    cards = _cards(card, torch, before, settings, memory)
    after = nvml.ask() if cards and before.devices else before
    say("measuring memory and disk")
    found = Checkup(
        tightfit=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch,
        driver=DriverCheck(before.driver, _dotted(before.cuda_driver), before.problem),
        visible_devices=settings.visible_devices,
        device_order=settings.device_order,
        devices=tuple(_device(each, cards) for each in after.devices),
        cards=cards,
        host=_host(memory),
        disk=_disk(settings),
        cache=look_at_cache(settings.cache_dir),
        libraries={name: _version(name) for name in LIBRARIES},
    )
    measured = _measured(found)
    if measured.cards:
        measured.keep(settings.cache_dir)
    hidden = nvml.visible(before.devices, settings.visible_devices, order=settings.device_order)
    return replace(found, advice=remedies(found, all_hidden=hidden == ()))


def _measured(found: Checkup) -> Machine:
    """What a plan can use later, without looking again."""
    cards = {}
    for card in found.cards:
        device = found.device_of(card)
        if device is not None and device.uuid is not None:
            cards[device.uuid] = MeasuredCard(
                card.link.pinned_bytes_per_s,
                card.link.pageable_bytes_per_s,
                card.context_bytes or None,
            )
    return Machine(cards, found.disk.bytes_per_s)


def _look_at_torch() -> TorchCheck:
    """Import it and ask whether it sees a device; what it warns of is kept, not shown."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            import torch
        except Exception as error:  # a broken installation raises nearly anything
            return TorchCheck(None, None, None, sees_cuda=False, problem=_first_line(error))
        try:
            sees = torch.cuda.is_available()
        except Exception as error:
            return TorchCheck(
                torch.__version__,
                torch.version.cuda,
                torch.version.hip,
                sees_cuda=False,
                problem=_first_line(error),
            )
    warned = [str(each.message).splitlines()[0] for each in said if "CUDA" in str(each.message)]
    return TorchCheck(
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
        sees_cuda=sees,
        problem=warned[0] if warned else None,
    )


def _cards(
    name: str | None,
    torch: TorchCheck,
    before: nvml.Answer,
    settings: Settings,
    memory: HostMemory,
) -> tuple[CardCheck, ...]:
    """None where PyTorch cannot be imported: every card stands on it."""
    if torch.version is None:
        return ()
    from tightfit.run.checkup.cards import check_cards

    return check_cards(name, before, settings=settings, host_room=memory.pinnable)


def _device(device: nvml.Device, cards: Sequence[CardCheck]) -> DeviceCheck:
    ours = nvml.pids_are_ours([process.pid for process in device.processes])
    known = None if device.name is None else match_device_name(device.name, device.total)
    return DeviceCheck(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        bus_id=device.bus_id,
        card=next((card.name for card in cards if card.device == device.index), None),
        total_bytes=device.total,
        used_bytes=device.used,
        free_bytes=device.free,
        link_generation=device.link_generation,
        link_lanes=device.link_width,
        link_generation_max=device.link_generation_max,
        link_lanes_max=device.link_width_max,
        holders=tuple(
            HolderCheck(
                pid=process.pid,
                name=process.name,
                held_bytes=process.used,
                ours=process.pid == os.getpid() if ours else None,
            )
            for process in device.processes
        ),
        table=None if known is None else known.name,
    )


def _host(memory: HostMemory) -> HostCheck:
    copying = host_copy_rate()
    group = memory.group
    return HostCheck(
        ram_bytes=memory.ram,
        available_bytes=memory.available,
        group_limit_bytes=None if group is None else group.limit,
        group_used_bytes=None if group is None else group.used,
        group_cache_bytes=None if group is None else group.cache,
        pinnable_bytes=memory.pinnable,
        lock_limit_bytes=memory.lock_limit,
        copy_bytes_per_s=copying.bytes_per_s,
        copy_about=copying.about,
    )


def _disk(settings: Settings) -> DiskCheck:
    rate = disk_rate(settings.cache_dir)
    return DiskCheck(rate.bytes_per_s, rate.about)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else "{}.{}".format(*version)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
