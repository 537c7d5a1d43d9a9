"""A check-up as a screenful for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from tightfit.run.checkup import Advice, CacheCheck, CardCheck, Checkup
from tightfit.run.checkup.values import DeviceCheck, HolderCheck
from tightfit.units import format_bytes

UNKNOWN = "unknown"
_LABEL_WIDTH = 17


def page(found: Checkup) -> Iterator[RenderableType]:
    """The parts, in order: the system, each card, devices left over, the host, advice."""
    yield _rows("System", _system(found))
    for card in found.cards:
        yield _rows(_title(found, card), _card(found, card))
    left_over = [device for device in found.devices if device.card is None]
    if left_over:
        yield _rows("Not in use here", [_left_over(device) for device in left_over])
    yield _rows("Host", _host(found))
    yield _advice(found.advice)


def cleared(gone: CacheCheck) -> str:
    """What went."""
    if not gone.files:
        return escape(f"{gone.folder}: nothing was kept there.")
    many = "file" if gone.files == 1 else "files"
    return escape(f"{gone.folder}: {gone.files} {many} removed, {size(gone.total_bytes)}.")


def size(value: int | None) -> str:
    """A size for people."""
    return UNKNOWN if value is None else format_bytes(value)


def rate(value: int | None) -> str:
    """A rate for people."""
    return UNKNOWN if value is None else f"{value / 1e9:.1f} GB/s"


def _rows(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, title=escape(title), title_justify="left")
    table.title_style = "bold"
    table.pad_edge = False
    table.add_column(min_width=_LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(ratio=1)
    for label, text in rows:
        table.add_row(f"  {escape(label)}", escape(text))
    table.add_row("", "")
    return table


def _system(found: Checkup) -> list[tuple[str, str]]:
    torch, driver = found.torch, found.driver
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "no CUDA"
    pytorch = f"{torch.version}, built for {built}" if torch.version else f"none: {torch.problem}"
    speaks = f"{driver.version}, speaks CUDA {driver.cuda} and older"
    rows = [
        ("tightfit", f"{found.tightfit} on Python {found.python}, {found.platform}"),
        ("PyTorch", pytorch.replace("built for no CUDA", "built without CUDA")),
        ("NVIDIA driver", speaks if driver.version else f"none answers: {driver.problem}"),
    ]
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", found.visible_devices),
        ("CUDA_DEVICE_ORDER", found.device_order),
    ):
        if value is not None:
            rows.append(("environment", f"{name}={value}"))
    there = [f"{name} {version}" for name, version in found.libraries.items() if version]
    absent = [name for name, version in found.libraries.items() if version is None]
    rows.append(("libraries", ", ".join(there)))
    if absent:
        rows.append(("not installed", ", ".join(absent)))
    return rows


def _title(found: Checkup, card: CardCheck) -> str:
    if card.simulated:
        return f"Card {card.name} (simulated: nothing of it was measured)"
    if card.kind == "cpu" and not found.torch.sees_cuda:
        return "Card cpu (PyTorch sees no GPU: jobs run here, or on a virtual card)"
    return f"Card {card.name}"


def _card(found: Checkup, card: CardCheck) -> list[tuple[str, str]]:
    if card.problem is not None:
        return [("problem", card.problem)]
    device = found.device_of(card)
    rows = []
    if card.hardware is not None:
        where = f", {device.bus_id}" if device is not None and device.bus_id else ""
        number = f", number {device.index} to the driver" if device is not None else ""
        rows.append(("device", f"{card.hardware}, compute {card.capability}{where}{number}"))
    rows.append(("computes in", "float32, float16" + (", bfloat16" if card.bf16 else "")))
    rows.append(("allocator", f"{card.allocator} ({card.allocator_from})"))
    rows += _memory(card)
    if device is not None:
        rows += [("held by", _holder(each)) for each in device.holders]
    rows += _link(card, device)
    if card.table is not None:
        memory, tera = rate(card.table_memory_bytes_per_s), (card.table_flops or 0) / 1e12
        peaks = f"{memory} of its own memory, {tera:.1f} TFLOP/s"
        rows.append(("table", f"{card.table}: {peaks} (published peaks, not measured)"))
    return rows


def _memory(card: CardCheck) -> list[tuple[str, str]]:
    """The total, and the three lines that explain what is not free."""
    total, used, free = (size(v) for v in (card.total_bytes, card.used_bytes, card.free_bytes))
    rows = [("memory", f"{total} in all: {used} used, {free} free")]
    if card.kind == "cpu":
        rows.append(("  others", f"{size(card.held_by_others_bytes)} held by other programs"))
        return rows
    how = f" ({card.context_source})" if card.context_source else ""
    rows += [
        ("  allocated", f"{size(card.allocated_bytes)} in tensors of this process"),
        ("  reserved", f"{size(card.reserved_bytes)} taken by its allocator, cache included"),
        (
            "  context, others",
            f"{size(card.context_bytes)} for the context{how}, which every process pays and no "
            f"trim gives back; {size(card.held_by_others_bytes)} held by others",
        ),
    ]
    if card.limit_bytes is not None:
        rows.append(("  limit", f"this process may reserve {size(card.limit_bytes)}"))
    return rows


def _holder(holder: HolderCheck) -> str:
    name = holder.name or "name unknown"
    ours = ", this process" if holder.ours else ""
    return f"pid {holder.pid} ({name}{ours}): {size(holder.held_bytes)}"


def _link(card: CardCheck, device: DeviceCheck | None) -> list[tuple[str, str]]:
    link = card.link
    rows = []
    if device is not None and device.link_lanes is not None:
        now = f"x{device.link_lanes} of PCIe {device.link_generation}"
        most = f"x{device.link_lanes_max} of PCIe {device.link_generation_max}"
        rows.append(("slot", f"{now} now, {most} at most"))
    if link.pinned_bytes_per_s is None and link.pageable_bytes_per_s is None:
        if link.table_bytes_per_s is not None:
            said = f"{rate(link.table_bytes_per_s)} from pinned memory, by the table; {link.about}"
            return [*rows, ("link", said)]
        return [*rows, ("link", link.about)]
    beside = f"; the table says {rate(link.table_bytes_per_s)}" if link.table_bytes_per_s else ""
    measured = f"{rate(link.pinned_bytes_per_s)} from pinned memory{beside}"
    pageable = f"{rate(link.pageable_bytes_per_s)} from other memory"
    return [*rows, ("link", f"{measured}; {pageable} (measured: {link.about})")]


def _left_over(device: DeviceCheck) -> tuple[str, str]:
    memory = f"{size(device.total_bytes)} in all, {size(device.used_bytes)} used"
    held = "; ".join(_holder(each) for each in device.holders)
    return (
        f"device {device.index}",
        f"{device.name or UNKNOWN}, {device.uuid or device.bus_id or UNKNOWN}: {memory}"
        + (f"; {held}" if held else ""),
    )


def _host(found: Checkup) -> list[tuple[str, str]]:
    host = found.host
    rows = [("RAM", f"{size(host.ram_bytes)}, {size(host.available_bytes)} available")]
    if host.group_limit_bytes is not None:
        cache = f", {size(host.group_cache_bytes)} of it page cache"
        rows.append(
            (
                "control group",
                f"limited to {size(host.group_limit_bytes)}, {size(host.group_used_bytes)} used"
                + (cache if host.group_cache_bytes is not None else ""),
            )
        )
    locked = "no limit" if host.lock_limit_bytes is None else size(host.lock_limit_bytes)
    rows += [
        (
            "can be pinned",
            f"{size(host.pinnable_bytes)} now; `ulimit -l` is {locked}, which bounds AMD's driver "
            "and not NVIDIA's",
        ),
        ("copies", f"{rate(host.copy_bytes_per_s)} ({host.copy_about})"),
        ("disk", f"{rate(found.disk.bytes_per_s)} read ({found.disk.about})"),
        (
            "learnt figures",
            f"{found.cache.files} files, {size(found.cache.total_bytes)} in {found.cache.folder}",
        ),
    ]
    return rows


def _advice(advice: tuple[Advice, ...]) -> Table:
    table = _rows("Advice", [] if advice else [("", "nothing to improve was found")])
    for number, each in enumerate(advice, 1):
        table.add_row(f"  {number}.", escape(each.what))
        table.add_row("", f"[bold]{escape(each.do)}[/bold]")
    return table
