"""Known cards: a table of public figures, by which a card can be planned for that is not here.

Nothing in it was measured on the cards that it names. Memory, memory bandwidth and arithmetic are
the makers' published peaks; the link is what the slot carries in theory times `LINK_SHARE`. A real
card is read and measured instead (`tightfit doctor`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tightfit.errors import UsageError
from tightfit.units import GIB, MIB

LINK_SHARE = 0.8
"""Of a PCIe link's raw rate, what copies from pinned memory get; 0.88 was measured on an H200."""
LANE_BYTES_PER_S = {3: 984_600_000, 4: 1_969_200_000, 5: 3_938_500_000}
"""What one PCIe lane carries by generation: 8, 16, 32 GT/s, of which 128 bits in 130 are data."""
_NEAR = 5
_TOLERANCE = 0.08


@dataclass(frozen=True)
class KnownCard:
    """A card on paper; sizes in bytes, rates in bytes or operations per second.

    Attributes:
        name: lower case with hyphens.
        total: what the driver shows of its memory (less on cards that keep checksums there).
        context: what a device context costs, roughly; it differs between driver versions.
        bf16: whether it computes in bfloat16 (NVIDIA: compute capability 8.0 and later).
        link_bytes_per_s: from pinned host memory to the card, by slot and `LINK_SHARE`.
        memory_bytes_per_s: the peak of its own memory.
        flops: the dense peak of fp16 or bf16 matrix products that add up in fp32, which GeForce
            cards do at half their advertised rate; the fp32 peak where there are no matrix units.
    """

    name: str
    total: int
    context: int
    bf16: bool
    link_bytes_per_s: int
    memory_bytes_per_s: int
    flops: int


@dataclass(frozen=True)
class _Family:
    """What cards of one make share: the PCIe generation, the context in MiB, bfloat16."""

    generation: int
    context: int
    bf16: bool = True


_PASCAL = _Family(3, 280, bf16=False)
_TURING_16 = _Family(3, 300, bf16=False)
_TURING = _Family(3, 320, bf16=False)
_AMPERE = _Family(4, 400)
_ADA = _Family(4, 430)
_BLACKWELL = _Family(5, 480)
_VOLTA = _Family(3, 320, bf16=False)
_HOPPER = _Family(5, 520)
_RDNA3 = _Family(4, 400)
_ARC = _Family(4, 300)

# name, memory in GiB, its GB/s, TFLOP/s, PCIe lanes. Laptop chips: at a middle power limit, and
# with 8 lanes, since many notebooks have no more.
_ROWS: tuple[tuple[_Family, tuple[tuple[str, float, float, float, int], ...]], ...] = (
    (
        _PASCAL,
        (
            ("gtx-1050-ti", 4, 112, 2.1, 16),
            ("gtx-1060-3gb", 3, 192, 3.9, 16),
            ("gtx-1060-6gb", 6, 192, 4.4, 16),
            ("gtx-1070", 8, 256, 6.5, 16),
            ("gtx-1070-ti", 8, 256, 8.2, 16),
            ("gtx-1080", 8, 320, 8.9, 16),
            ("gtx-1080-ti", 11, 484, 11.3, 16),
            ("titan-xp", 12, 548, 12.1, 16),
        ),
    ),
    (
        _TURING_16,
        (
            ("gtx-1650", 4, 128, 3.0, 16),
            ("gtx-1650-super", 4, 192, 4.4, 16),
            ("gtx-1660", 6, 192, 5.0, 16),
            ("gtx-1660-super", 6, 336, 5.0, 16),
            ("gtx-1660-ti", 6, 288, 5.4, 16),
        ),
    ),
    (
        _TURING,
        (
            ("rtx-2060", 6, 336, 25.8, 16),
            ("rtx-2060-12gb", 12, 336, 28.7, 16),
            ("rtx-2060-super", 8, 448, 28.7, 16),
            ("rtx-2070", 8, 448, 29.9, 16),
            ("rtx-2070-super", 8, 448, 36.3, 16),
            ("rtx-2080", 8, 448, 40.3, 16),
            ("rtx-2080-super", 8, 496, 44.6, 16),
            ("rtx-2080-ti", 11, 616, 53.8, 16),
            ("titan-rtx", 24, 672, 130.5, 16),
            ("t4", 15, 320, 65.0, 16),
        ),
    ),
    (
        _AMPERE,
        (
            ("rtx-3050", 8, 224, 18.2, 8),
            ("rtx-3050-6gb", 6, 168, 13.5, 8),
            ("rtx-3050-laptop", 4, 192, 11.5, 8),
            ("rtx-3050-ti-laptop", 4, 192, 14.3, 8),
            ("rtx-3060", 12, 360, 25.5, 16),
            ("rtx-3060-8gb", 8, 240, 25.5, 16),
            ("rtx-3060-ti", 8, 448, 32.4, 16),
            ("rtx-3060-laptop", 6, 336, 21.5, 8),
            ("rtx-3070", 8, 448, 40.6, 16),
            ("rtx-3070-ti", 8, 608, 43.5, 16),
            ("rtx-3070-laptop", 8, 448, 28.7, 8),
            ("rtx-3070-ti-laptop", 8, 448, 33.0, 8),
            ("rtx-3080", 10, 760, 59.5, 16),
            ("rtx-3080-12gb", 12, 912, 61.3, 16),
            ("rtx-3080-ti", 12, 912, 68.2, 16),
            ("rtx-3080-laptop-8gb", 8, 448, 34.4, 8),
            ("rtx-3080-laptop-16gb", 16, 448, 34.4, 8),
            ("rtx-3080-ti-laptop", 16, 512, 41.6, 8),
            ("rtx-3090", 24, 936, 71.2, 16),
            ("rtx-3090-ti", 24, 1008, 80.0, 16),
            ("rtx-a2000-6gb", 6, 288, 31.9, 16),
            ("rtx-a2000-12gb", 12, 288, 31.9, 16),
            ("rtx-a4000", 16, 448, 76.7, 16),
            ("rtx-a4500", 20, 640, 94.6, 16),
            ("rtx-a5000", 24, 768, 111.1, 16),
            ("rtx-a6000", 48, 768, 154.8, 16),
            ("a10", 22.5, 600, 125.0, 16),
            ("a10g", 22.5, 600, 70.0, 16),
            ("a40", 45, 696, 149.7, 16),
            ("a100-40gb", 40, 1555, 312.0, 16),
            ("a100-80gb", 80, 1935, 312.0, 16),
        ),
    ),
    (
        _ADA,
        (
            ("rtx-4050-laptop", 6, 192, 20.5, 8),
            ("rtx-4060", 8, 272, 30.2, 8),
            ("rtx-4060-laptop", 8, 256, 24.6, 8),
            ("rtx-4060-ti-8gb", 8, 288, 44.1, 8),
            ("rtx-4060-ti-16gb", 16, 288, 44.1, 8),
            ("rtx-4070", 12, 504, 58.3, 16),
            ("rtx-4070-laptop", 8, 256, 36.9, 8),
            ("rtx-4070-super", 12, 504, 71.0, 16),
            ("rtx-4070-ti", 12, 504, 80.2, 16),
            ("rtx-4070-ti-super", 16, 672, 88.2, 16),
            ("rtx-4080", 16, 717, 97.5, 16),
            ("rtx-4080-laptop", 12, 432, 59.4, 8),
            ("rtx-4080-super", 16, 736, 104.4, 16),
            ("rtx-4090", 24, 1008, 165.2, 16),
            ("rtx-4090-laptop", 16, 576, 77.8, 8),
            ("rtx-6000-ada", 48, 960, 364.2, 16),
            ("l4", 22.5, 300, 121.0, 16),
            ("l40s", 45, 864, 362.1, 16),
        ),
    ),
    (
        _BLACKWELL,
        (
            ("rtx-5050", 8, 320, 26.3, 8),
            ("rtx-5060", 8, 448, 38.4, 8),
            ("rtx-5060-laptop", 8, 384, 24.0, 8),
            ("rtx-5060-ti-8gb", 8, 448, 47.4, 8),
            ("rtx-5060-ti-16gb", 16, 448, 47.4, 8),
            ("rtx-5070", 12, 672, 61.7, 16),
            ("rtx-5070-laptop", 8, 384, 33.2, 8),
            ("rtx-5070-ti", 16, 896, 87.9, 16),
            ("rtx-5070-ti-laptop", 12, 672, 42.4, 8),
            ("rtx-5080", 16, 960, 112.6, 16),
            ("rtx-5080-laptop", 16, 896, 55.3, 8),
            ("rtx-5090", 32, 1792, 209.5, 16),
            ("rtx-5090-laptop", 24, 896, 75.6, 8),
        ),
    ),
    (
        _VOLTA,
        (
            ("v100-16gb", 16, 900, 112.0, 16),
            ("v100-32gb", 32, 900, 112.0, 16),
        ),
    ),
    (
        _HOPPER,
        (
            ("h100-pcie", 79.6, 2000, 756.0, 16),
            ("h100", 79.6, 3350, 989.0, 16),
            ("h200", 139.8, 4800, 989.0, 16),
        ),
    ),
    (
        _RDNA3,
        (
            ("rx-7600", 8, 288, 43.5, 8),
            ("rx-7600-xt", 16, 288, 45.1, 8),
            ("rx-7800-xt", 16, 624, 74.6, 16),
            ("rx-7900-xt", 20, 800, 103.0, 16),
            ("rx-7900-xtx", 24, 960, 122.8, 16),
        ),
    ),
    (
        _ARC,
        (
            ("arc-a750", 8, 512, 114.7, 16),
            ("arc-a770", 16, 560, 137.6, 16),
            ("arc-b580", 12, 456, 116.5, 8),
        ),
    ),
)
_NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|radeon|intel|graphics|gpu|generation|r|tm|hbm\d\w?|sxm\d|\d+gb"
)


def link_rate(generation: int, lanes: int) -> int | None:
    """Bytes per second from pinned memory over such a PCIe link; None for an unknown generation."""
    lane = LANE_BYTES_PER_S.get(generation)
    return None if lane is None else int(lane * lanes * LINK_SHARE)


def known_cards() -> tuple[KnownCard, ...]:
    """The whole table, the makers' older cards first."""
    return tuple(_table().values())


def known_card(name: str) -> KnownCard:
    """The card called `name`, such as ``rtx-4060-ti-16gb``, in any case.

    Raises `UsageError` with the nearest names for one that is not in the table, also for a name
    that stands for cards with different memories.
    """
    text = name.strip().lower()
    card = _table().get(text)
    if card is None:
        raise UsageError(f"card `{name}` is not in the table of known cards. {near_names(text)}")
    return card


def is_known(name: str) -> bool:
    """Whether `known_card` has an answer."""
    return name.strip().lower() in _table()


def near_names(name: str) -> str:
    """The names of the table that look most like `name`, as a sentence of its own."""
    text = name.strip().lower()
    names = list(_table())
    longer = [each for each in names if text and _without_size(each) == text]
    near = longer or difflib.get_close_matches(text, names, n=_NEAR, cutoff=0.5)
    if not near:
        few = ", ".join(names[:: len(names) // _NEAR])
        return f"Known are {len(names)} cards, such as {few}."
    return f"Did you mean {' or '.join(near)}?"


def match_device_name(name: str, total: int | None = None) -> KnownCard | None:
    """The table's card for a driver's spelling, such as ``NVIDIA GeForce RTX 4060 Ti``.

    `total` is what the driver says the device has, in bytes: it tells apart the cards of one name
    and turns down a slice of a card. None where the table has no such card, or several.
    """
    words = _words(name)
    for wanted in (words, [word for word in words if word != "pcie"]):
        found = [card for card in known_cards() if _words(_without_size(card.name)) == wanted]
        if total is not None:
            found = [c for c in found if abs(c.total - total) <= _TOLERANCE * c.total]
            found.sort(key=lambda card: abs(card.total - total))
            found = found[:1]
        if len(found) == 1:
            return found[0]
    return None


def _words(name: str) -> list[str]:
    """A name without makers, form factors and sizes."""
    words = re.findall(r"[a-z0-9]+", _without_size(name.lower()))
    return [word for word in words if not _NOISE.fullmatch(word)]


def _without_size(name: str) -> str:
    return re.sub(r"[- ]\d+\s?gb$", "", name)


@cache
def _table() -> dict[str, KnownCard]:
    return {card.name: card for card in _cards()}


def _cards() -> Iterator[KnownCard]:
    for family, rows in _ROWS:
        for name, memory, bandwidth, tera, lanes in rows:
            link = link_rate(family.generation, lanes)
            assert link is not None
            yield KnownCard(
                name=name,
                total=int(memory * GIB),
                context=family.context * MIB,
                bf16=family.bf16,
                link_bytes_per_s=link,
                memory_bytes_per_s=int(bandwidth * 10**9),
                flops=int(tera * 10**12),
            )
