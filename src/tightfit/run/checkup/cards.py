"""One card of a check-up: opened, asked, and its link measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tightfit.card import Card, Reading, nvml, open_cards
from tightfit.card.known import KnownCard, is_known, known_card, match_device_name
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place.link import MOST_BYTES, measure_link
from tightfit.run.checkup.values import CardCheck, LinkCheck
from tightfit.settings import Settings

Ask = Callable[[], nvml.Answer]


@dataclass(frozen=True)
class Hardware:
    """Who a CUDA device says it is.

    Attributes:
        uuid, bus_id: None where this PyTorch does not tell.
        capability: (major, minor).
    """

    name: str
    uuid: str | None
    bus_id: str | None
    capability: tuple[int, int]


def check_cards(
    name: str | None, before: nvml.Answer, *, settings: Settings, host_room: int
) -> tuple[CardCheck, ...]:
    """The cards that `name` says, or every CUDA card, or the host where there is none.

    `before` is what the driver said before PyTorch touched a device. A card that cannot be opened
    is one with a problem. Raises `UsageError` for a name that is no card.
    """
    if name is None and torch.cuda.is_available():
        names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    else:
        names = [name or "cpu"]
    checks: list[CardCheck] = []
    for each in names:
        try:
            for card in open_cards(each):
                checks.append(check_card(card, before, settings=settings, host_room=host_room))
        except UsageError:
            raise
        except Exception as error:  # whatever a device or its driver says
            checks.append(_broken(each, error))
    return tuple(checks)


def check_card(
    card: Card,
    before: nvml.Answer,
    *,
    settings: Settings,
    host_room: int,
    ask: Ask = nvml.ask,
    identify: Callable[[Card], Hardware | None] | None = None,
) -> CardCheck:
    """Ask and measure one open card; what was taken for it is given back.

    `host_room` bounds what is pinned for it. `ask` and `identify` stand in for the driver.
    """
    hardware = (identify or hardware_of)(card)
    device = same = None
    if hardware is not None:
        device = nvml.match(ask().devices, uuid=hardware.uuid, bus_id=hardware.bus_id)
        same = nvml.match(before.devices, uuid=hardware.uuid, bus_id=hardware.bus_id)
    reading, source = _with_context(card, device, same)
    rates = measure_link(card.device, free=reading.free, most=min(MOST_BYTES, host_room // 8))
    gc.collect()
    card.trim()
    known = _known(card, hardware, reading)
    simulated = card.kind == "virtual"
    return CardCheck(
        name=card.name,
        kind=card.kind,
        simulated=simulated,
        hardware=None if hardware is None else hardware.name,
        device=None if device is None else device.index,
        capability=None if hardware is None else "{}.{}".format(*hardware.capability),
        bf16=card.supports(torch.bfloat16),
        allocator=card.allocator,
        allocator_from=_chosen_by(card, settings),
        total_bytes=reading.total,
        used_bytes=None if reading.free is None else reading.total - reading.free,
        free_bytes=reading.free,
        allocated_bytes=reading.allocated,
        reserved_bytes=reading.reserved,
        context_bytes=reading.context,
        context_source=source,
        held_by_others_bytes=reading.held_by_others,
        limit_bytes=reading.limit,
        link=LinkCheck(
            pinned_bytes_per_s=rates.pinned,
            pageable_bytes_per_s=rates.pageable,
            table_bytes_per_s=None if known is None else known.link_bytes_per_s,
            about="simulated: nothing to measure" if simulated else rates.about,
        ),
        table=None if known is None else known.name,
        table_memory_bytes_per_s=None if known is None else known.memory_bytes_per_s,
        table_flops=None if known is None else known.flops,
    )


def _broken(name: str, error: Exception) -> CardCheck:
    text = str(error).strip().splitlines()
    said = text[0] if text else type(error).__name__
    return CardCheck(name, name.partition(":")[0], simulated=False, problem=said.rstrip("."))


def hardware_of(card: Card) -> Hardware | None:
    """Who a CUDA card is; None for another kind."""
    if card.kind != "cuda":
        return None
    found = torch.cuda.get_device_properties(card.device)
    bus = [int(getattr(found, f"pci_{part}_id", -1)) for part in ("domain", "bus", "device")]
    uuid = getattr(found, "uuid", None)
    return Hardware(
        name=found.name,
        uuid=None if uuid is None else str(uuid),
        bus_id=None if -1 in bus else "{:08x}:{:02x}:{:02x}.0".format(*bus),
        capability=(found.major, found.minor),
    )


def _with_context(
    card: Card, device: nvml.Device | None, before: nvml.Device | None
) -> tuple[Reading, str | None]:
    """The reading, and how its context is known.

    Where the driver hides processes, the context is what the whole device lost between two looks
    of ours, less what our allocator took: right unless another program moved meanwhile.
    """
    reading = card.read()
    if card.kind == "virtual":
        return reading, "as the card was described"
    if reading.context is not None:
        return reading, "the driver's list of processes"
    used, was = (None if each is None else each.used for each in (device, before))
    if used is None or was is None or reading.reserved is None or reading.free is None:
        return reading, None
    context = used - was - reading.reserved
    if context <= 0:
        return reading, None
    others = max(0, reading.total - reading.free - reading.reserved - context)
    changed = replace(reading, context=context, held_by_others=others)
    return changed, "the device before and after it was opened"


def _known(card: Card, hardware: Hardware | None, reading: Reading) -> KnownCard | None:
    """The card's row in the table of known cards."""
    if isinstance(card, VirtualCard):
        words: Sequence[str] = card.name.removeprefix("virtual:").split(",")
        last = words[0].strip().lower()
        name = last if is_known(last) else last.partition("x")[2]
        return known_card(name) if is_known(name) else None
    return None if hardware is None else match_device_name(hardware.name, reading.total)


def _chosen_by(card: Card, settings: Settings) -> str:
    """Who chose the allocator."""
    if card.kind == "virtual":
        return "the card's description"
    if card.kind != "cuda":
        return "the C library's own"
    if settings.allocator is not None and settings.allocator_words is not None:
        return settings.allocator_words
    return "PyTorch's default"
