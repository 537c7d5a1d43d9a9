"""What can be known of a card before it is opened, without torch: to plan on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightfit.card import nvml
from tightfit.card.host_memory import read_host_memory
from tightfit.card.known import (
    KnownCard,
    is_known,
    known_card,
    link_rate,
    match_device_name,
    near_names,
)
from tightfit.card.machine import Machine, MeasuredCard
from tightfit.card.virtual.spec import parse_virtual
from tightfit.errors import UsageError
from tightfit.settings import Settings
from tightfit.units import MIB

_CUDA = re.compile(r"cuda(?::(\d+))?")
_CONTEXT = 400 * MIB
"""What a device context costs on a card that is not in the table, roughly."""


@dataclass(frozen=True)
class Outlook:
    """A card on paper; sizes in bytes, rates a second, None what is not known.

    Attributes:
        name: as the user wrote it.
        kind: ``cuda``, ``virtual`` or ``cpu``.
        product: the name in the table of known cards; None where it is not there.
        hardware: as `Card.hardware` of the opened card; None where it was not asked.
        total: what it has.
        allocator: ``exact``, ``native``, ``async``, ``expandable`` or ``none``.
        context: what a device context will take of it.
        context_source: ``measured`` (nothing is hidden on a virtual card) or ``table``.
        held_by_others: what is taken now.
        link: copying from pinned memory.
        link_source: ``measured`` (by `tightfit doctor`) or ``table``.
        staged: copying from other memory; None where it was not measured.
        disk: of this machine, reading what is not in memory; None where it was not measured.
        flops: arithmetic; from the table.
        bf16: whether it computes in bfloat16; None is unknown.
        scratch: whether its operators take scratch, as those of real cards do.
        note: what the user should know about these figures.
    """

    name: str
    kind: str
    product: str | None
    total: int
    allocator: str
    context: int = 0
    context_source: str = "measured"
    held_by_others: int | None = 0
    link: int | None = None
    link_source: str = "table"
    staged: int | None = None
    disk: int | None = None
    flops: int | None = None
    bf16: bool | None = None
    scratch: bool = True
    note: str | None = None
    hardware: str | None = None


def look(
    name: str | None, *, size: str | None = None, settings: Settings | None = None, ask: Any = None
) -> Outlook:
    """The card that `name` says; None is the first CUDA device, else the host.

    Args:
        size: without a name, a bare virtual card of this size.
        settings: of the process, for its devices and allocator.
        ask: stands in for the management library.

    Raises `UsageError` for a name that is no card, or of a CUDA device that cannot be seen.
    """
    settings = settings or Settings.from_environ()
    machine = Machine.read(settings.cache_dir)
    return replace(_look(name, size, settings, machine, ask), disk=machine.disk)


def _look(
    name: str | None, size: str | None, settings: Settings, machine: Machine, ask: Any
) -> Outlook:
    if name is None and size is not None:
        return _virtual(f"virtual:{size}")
    if name is not None and name.strip().partition(":")[0] == "virtual":
        return _virtual(name.strip())
    if name is not None and name.strip() == "cpu":
        return _host("cpu")
    match = _CUDA.fullmatch(name.strip()) if name is not None else None
    if name is not None and match is None:
        raise UsageError(
            f"card `{name}` is unknown: use cuda:0, cpu, virtual:SIZE such as virtual:6GiB, or "
            f"virtual:NAME such as virtual:gtx-1660-super.{_meant(name)}"
        )
    answer = nvml.ask(ask)
    shown = nvml.visible(answer.devices, settings.visible_devices, order=settings.device_order)
    if match is None and shown == ():
        return _host("cpu")
    name = "cuda:0" if name is None else name.strip()
    number = int(match[1] or 0) if match is not None else 0
    return _device(name, _numbered(name, number, shown, answer), settings, machine)


def _meant(name: str) -> str:
    """A hint, where it looks like a card of the table."""
    if is_known(name):
        return f" Did you mean virtual:{name.strip().lower()}?"
    hint = near_names(name)
    return f" {hint}" if hint.startswith("Did you mean") else ""


def _numbered(
    name: str, number: int, shown: Sequence[nvml.Device] | None, answer: nvml.Answer
) -> nvml.Device:
    if shown is None and _alike(answer.devices) and number < len(answer.devices):
        # Whichever it is, it is one of these; what is taken of it is not known.
        return replace(answer.devices[number], used=None, uuid=None)
    if shown is None:
        raise UsageError(
            f"card `{name}`: which of the {len(answer.devices)} devices that is cannot be told "
            "without CUDA; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name a card such as "
            "virtual:rtx-3060."
        )
    if number >= len(shown):
        seen = f"{len(shown)} CUDA devices are visible" if shown else "no CUDA device is visible"
        why = f" ({answer.problem.rstrip('.')})" if answer.problem else ""
        raise UsageError(
            f"card `{name}`: {seen}{why}; name a card such as virtual:rtx-3060 to plan for one."
        )
    return shown[number]


def _alike(devices: Sequence[nvml.Device]) -> bool:
    return len({(device.name, device.total) for device in devices}) == 1


def _virtual(name: str) -> Outlook:
    specs = parse_virtual(name.partition(":")[2])
    if len(specs) != 1:
        raise UsageError(f"card `{name}` names {len(specs)} cards, and one is needed here.")
    spec = specs[0]
    body = name.partition(":")[2].split(",")[0].strip().lower()
    known = known_card(body) if is_known(body) else None
    note = None
    if known is not None:
        note = f"{known.name} is from a table of public figures; nothing was measured on one"
    elif spec.allocator == "exact":
        note = (
            "a card of bare size has no context, no slack and no scratch of convolutions; a named "
            "one such as virtual:rtx-3060 has"
        )
    return Outlook(
        name,
        "virtual",
        known.name if known else None,
        spec.total,
        spec.allocator,
        context=spec.context,
        context_source="table" if known else "measured",
        held_by_others=spec.others,
        link=spec.link or (known.link_bytes_per_s if known else None),
        flops=known.flops if known else None,
        bf16=spec.bf16,
        scratch=spec.allocator != "exact",
        note=note,
    )


def _device(name: str, device: nvml.Device, settings: Settings, machine: Machine) -> Outlook:
    if device.total is None:
        raise UsageError(f"card `{name}`: the driver does not say how much memory it has.")
    known = match_device_name(device.name or "", device.total)
    seen = machine.cards.get(device.uuid or "", MeasuredCard())
    context = known.context if known else _CONTEXT
    return Outlook(
        name,
        "cuda",
        known.name if known else None,
        device.total,
        settings.allocator or "native",
        context=context if seen.context is None else seen.context,
        context_source="table" if seen.context is None else "measured",
        held_by_others=device.used,
        link=_link(device, known) if seen.link is None else seen.link,
        link_source="table" if seen.link is None else "measured",
        staged=seen.staged,
        flops=known.flops if known else None,
        bf16=known.bf16 if known else None,
        note=None if known else f"{device.name} is not in the table of known cards",
        hardware=f"{device.name} {settings.allocator or 'native'}",
    )


def _link(device: nvml.Device, known: KnownCard | None) -> int | None:
    """By the slot that it sits in, else by the table."""
    if device.link_generation_max is not None and device.link_width_max is not None:
        rate = link_rate(device.link_generation_max, device.link_width_max)
        if rate is not None:
            return rate
    return known.link_bytes_per_s if known else None


def _host(name: str) -> Outlook:
    memory = read_host_memory()
    return Outlook(
        name,
        "cpu",
        None,
        memory.total,
        "none",
        held_by_others=max(0, memory.total - memory.available),
        bf16=True,
        scratch=False,
        note="there is no card: this plans for the host's own memory",
    )
