"""What would help, from what a check-up found: rules over plain values, no look at the machine."""

from __future__ import annotations

from collections.abc import Iterator

from tightfit.card.known import link_rate
from tightfit.run.checkup.values import Advice, CardCheck, Checkup, DeviceCheck, HolderCheck
from tightfit.units import MIB, format_bytes

INDEX = "https://download.pytorch.org/whl"
_BUILDS = ((13, "cu130"), (12, "cu126"))
"""PyTorch's CUDA builds by the oldest driver that runs them: its CUDA version's first number."""
_MUCH = 256 * MIB
_MOST_NAMED = 3
_SLOW = 0.6
"""A link below this share of what it should carry is worth a look."""
_LITTLE_TO_LOCK = 1024 * MIB


def remedies(found: Checkup, *, all_hidden: bool = False) -> tuple[Advice, ...]:
    """Advice, the most helpful first.

    `all_hidden`: the environment hides every device that the driver shows.
    """
    return (
        *_pytorch(found, all_hidden),
        *(advice for card in found.cards for advice in _card(found, card)),
        *_host(found),
        *_packages(found),
    )


def _pytorch(found: Checkup, all_hidden: bool) -> Iterator[Advice]:
    """Why PyTorch does not see a device that is there."""
    torch, driver = found.torch, found.driver
    if torch.version is None:
        yield Advice(
            f"PyTorch cannot be imported: {torch.problem}.",
            "pip install --force-reinstall torch",
        )
        return
    if torch.sees_cuda or torch.hip is not None:
        return
    if not found.devices:
        if torch.cuda is not None and driver.version is None:
            yield Advice(
                f"PyTorch is built for CUDA {torch.cuda}, and no NVIDIA driver answers "
                f"({driver.problem}).",
                "nvidia-smi says more; a container needs: docker run --gpus all",
            )
        return
    first = found.devices[0].name or "an NVIDIA device"
    speaks = int(driver.cuda.partition(".")[0]) if driver.cuda else None
    if torch.cuda is None:
        yield Advice(
            f"{first} is here, and PyTorch {torch.version} is a build without CUDA.",
            _reinstall(speaks),
        )
    elif all_hidden:
        yield Advice(
            f"CUDA_VISIBLE_DEVICES={found.visible_devices} hides every device.",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif speaks is not None and speaks < int(torch.cuda.partition(".")[0]):
        yield Advice(
            f"PyTorch is built for CUDA {torch.cuda}; driver {driver.version} speaks "
            f"{driver.cuda} at most.",
            f"a newer driver, or: {_reinstall(speaks)}",
        )
    else:
        said = f" ({torch.problem})" if torch.problem else ""
        yield Advice(f"{first} is here, and PyTorch cannot use it{said}.", "nvidia-smi")


def _reinstall(speaks: int | None) -> str:
    """The command for the newest build that a driver runs."""
    build = next((name for first, name in _BUILDS if speaks is None or speaks >= first), None)
    if build is None:
        return "a driver from 2023 or later (version 525), then this again"
    return f"pip install --force-reinstall torch --index-url {INDEX}/{build}"


def _card(found: Checkup, card: CardCheck) -> Iterator[Advice]:
    device = found.device_of(card)
    if card.problem is not None:
        yield Advice(f"{card.name} cannot be opened: {card.problem}.", "nvidia-smi")
    if card.simulated or card.kind != "cuda":
        return
    yield from _holders(card, device)
    yield from _link(card, device)
    if card.limit_bytes is not None:
        yield Advice(
            f"This process may reserve {format_bytes(card.limit_bytes)} of {card.name} at most.",
            "per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF says so: drop it, or plan "
            "with it",
        )
    if card.allocator == "native" and card.allocator_from == "PyTorch's default":
        yield Advice(
            f"{card.name} runs the native allocator, which keeps 1.25 to 1.75 times what is in "
            "use; expandable segments keep less.",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


def _holders(card: CardCheck, device: DeviceCheck | None) -> Iterator[Advice]:
    """Who else holds memory, the largest first."""
    if (card.held_by_others_bytes or 0) < _MUCH:
        return
    held = format_bytes(card.held_by_others_bytes or 0)
    others = [each for each in (device.holders if device else ()) if each.ours is False]
    large = sorted(
        (each for each in others if (each.held_bytes or 0) >= _MUCH),
        key=lambda each: -(each.held_bytes or 0),
    )
    for each in large[:_MOST_NAMED]:
        yield Advice(
            f"{_named(each)} holds {format_bytes(each.held_bytes or 0)} of {card.name}.",
            f"close it (pid {each.pid})",
        )
    if not large:
        pids = ", ".join(str(each.pid) for each in others)
        who = f"pid {pids}" if pids else "who they are is hidden from here, as in a container"
        yield Advice(
            f"Other programs hold {held} of {card.name}: {who}.",
            f"close pid {pids}" if pids else "nvidia-smi, on the machine itself, names them",
        )


def _named(holder: HolderCheck) -> str:
    return f"{holder.name or 'A program'} (pid {holder.pid})"


def _link(card: CardCheck, device: DeviceCheck | None) -> Iterator[Advice]:
    """A narrow slot, or copies far below what the card could take."""
    link, lanes, most = card.link, None, None
    if device is not None:
        lanes, most = device.link_lanes, device.link_lanes_max
    slot = "a slot with more lanes (no riser, not behind the chipset); the mainboard's manual tells"
    if lanes is not None and most is not None and lanes < most:
        yield Advice(f"{card.name} is linked by x{lanes}, and could be by x{most}.", slot)
        return
    could = link.table_bytes_per_s
    generation = device.link_generation_max if device is not None else None
    by_slot = link_rate(generation, lanes) if generation and lanes else None
    if could is not None and by_slot is not None and by_slot < _SLOW * could:
        yield Advice(
            f"{card.name} is linked by x{lanes} of PCIe {generation}, about {_rate(by_slot)}; "
            f"the card can take {_rate(could)}.",
            slot,
        )
        return
    should = min((each for each in (could, by_slot) if each is not None), default=None)
    is_slow = should is not None and (link.pinned_bytes_per_s or should) < _SLOW * should
    if is_slow and should is not None and link.pinned_bytes_per_s is not None:
        yield Advice(
            f"Copies to {card.name} reach {_rate(link.pinned_bytes_per_s)}; "
            f"{_rate(should)} is usual.",
            "nvidia-smi -q -d PERFORMANCE,PCIE tells whether something else uses the link",
        )


def _host(found: Checkup) -> Iterator[Advice]:
    host = found.host
    if host.group_limit_bytes is not None and host.group_limit_bytes < host.ram_bytes:
        yield Advice(
            f"This process may use {format_bytes(host.group_limit_bytes)} of the machine's "
            f"{format_bytes(host.ram_bytes)} of RAM: its control group has a limit.",
            "docker run --memory=SIZE, or systemd-run -p MemoryMax=SIZE, sets another",
        )
    failed = any(card.link.about.startswith("memory cannot be pinned") for card in found.cards)
    bound = found.torch.hip is not None and (host.lock_limit_bytes or _LITTLE_TO_LOCK)
    limited = host.lock_limit_bytes is not None
    if limited and (failed or (bound and bound < _LITTLE_TO_LOCK)):
        yield Advice(
            f"No more than {format_bytes(host.lock_limit_bytes or 0)} may be pinned or locked.",
            "ulimit -l unlimited (a container: docker run --ulimit memlock=-1)",
        )
    elif failed:
        yield Advice(
            "Memory cannot be pinned, so weights stream at the slower rate.",
            f"free some of the host's memory: {format_bytes(host.available_bytes)} is available",
        )


def _packages(found: Checkup) -> Iterator[Advice]:
    if found.torch.sees_cuda and found.libraries.get("nvidia-ml-py", "") is None:
        yield Advice(
            "Who else holds memory cannot be told without nvidia-ml-py.",
            "pip install nvidia-ml-py",
        )


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"
