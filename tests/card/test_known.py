"""The table of known cards: what holds of every row, and how a driver's spelling finds one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.card.known import (
    LINK_SHARE,
    KnownCard,
    known_card,
    known_cards,
    link_rate,
    match_device_name,
)
from tightfit.card.virtual.spec import parse_virtual
from tightfit.errors import UsageError
from tightfit.units import GIB, MIB

CARDS = known_cards()


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_row_makes_sense(card: KnownCard) -> None:
    """Names are lower case with hyphens; a link is slower than the memory behind it."""
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", card.name)
    assert 2 * GIB < card.total < 200 * GIB
    assert 200 * MIB < card.context < GIB
    assert 0 < card.link_bytes_per_s < card.memory_bytes_per_s < card.flops


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_row_can_be_opened_as_a_virtual_card(card: KnownCard) -> None:
    """With the table's size, context and dtypes, and the native allocator."""
    (spec,) = parse_virtual(card.name)
    assert (spec.total, spec.context, spec.bf16) == (card.total, card.context, card.bf16)
    assert spec.allocator == "native"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_row_is_found_by_its_own_name_and_memory(card: KnownCard) -> None:
    """Names that differ by memory alone are told apart by it."""
    assert match_device_name(card.name, card.total) == card
    assert known_card(card.name.upper()) == card


@pytest.mark.parametrize(
    ("device", "mib", "name"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 3060", 12288, "rtx-3060"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 6144, "rtx-3060-laptop"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "rtx-4090-laptop"),
        ("GeForce GTX 1080 Ti", 11264, "gtx-1080-ti"),
        ("NVIDIA GeForce GTX 1060 6GB", 6144, "gtx-1060-6gb"),
        ("NVIDIA GeForce GTX 1660 SUPER", 6144, "gtx-1660-super"),
        ("NVIDIA RTX A2000 12GB", 12288, "rtx-a2000-12gb"),
        ("NVIDIA RTX A6000", 49140, "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"),
        ("NVIDIA TITAN RTX", 24576, "titan-rtx"),
        ("Tesla T4", 15360, "t4"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-16gb"),
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
        ("NVIDIA H200", 143771, "h200"),
        ("AMD Radeon RX 7900 XTX", 24560, "rx-7900-xtx"),
        ("Intel(R) Arc(TM) A770 Graphics", 16225, "arc-a770"),
    ],
)
def test_a_driver_s_spelling_finds_its_row(device: str, mib: int, name: str) -> None:
    """Makers, form factors and sizes in a name do not matter; the memory does."""
    found = match_device_name(device, mib * MIB)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("device", "total"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", None),  # 8 or 16 GB
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB),
        ("NVIDIA GeForce RTX 3060", 10 * GIB),
        ("NVIDIA GeForce RTX 9999", 12 * GIB),
        ("Quadro RTX 6000", 24 * GIB),
        ("", 8 * GIB),
    ],
)
def test_what_could_be_several_or_none_is_none(device: str, total: int | None) -> None:
    """Unknown rather than a guess."""
    assert match_device_name(device, total) is None


@given(st.text(max_size=40), st.none() | st.integers(0, 2**40))
def test_no_spelling_breaks_the_search(device: str, total: int | None) -> None:
    """Whatever a driver says; and what is found has about that memory."""
    found = match_device_name(device, total)
    if found is not None and total is not None:
        assert abs(found.total - total) < 0.1 * found.total


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rtx-4060-ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("rtx-3600", "rtx-3060"),
        ("gtx-1660super", "gtx-1660-super"),
        ("potato", "gtx-1050-ti"),
        ("", "such as"),
    ],
)
def test_an_unknown_card_is_refused_with_the_near_names(name: str, near: str) -> None:
    """Also a name that stands for two cards."""
    with pytest.raises(UsageError, match=near):
        known_card(name)
    with pytest.raises(UsageError, match=near):
        parse_virtual(f"{name},others=1GiB")


def test_a_link_is_a_share_of_what_its_lanes_carry() -> None:
    """Twice the lanes or the next generation is twice the rate; 16 lanes of 5.0 carry 63 GB/s."""
    rates = {(g, lanes): link_rate(g, lanes) or 0 for g in (3, 4, 5) for lanes in (4, 8, 16)}
    for (generation, lanes), rate in rates.items():
        assert rates.get((generation, 2 * lanes), 2 * rate) == pytest.approx(2 * rate, rel=1e-3)
        assert rates.get((generation + 1, lanes), 2 * rate) == pytest.approx(2 * rate, rel=1e-3)
    assert rates[5, 16] == pytest.approx(63e9 * LINK_SHARE, rel=0.01)
    assert link_rate(9, 16) is None


def test_the_table_costs_no_torch() -> None:
    """A plan from the table answers at once."""
    code = "import sys, tightfit.card.known; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
