"""Descriptions of virtual cards: sizes, names, counts, options, and what is refused."""

from __future__ import annotations

import pytest

from tightfit.card.virtual.spec import VirtualSpec, parse_virtual
from tightfit.errors import UsageError
from tightfit.units import GIB, MIB


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("64MiB", 64 * MIB),
        ("6GiB", 6 * GIB),
        (".5GiB", GIB // 2),
        ("1.5g", 3 * GIB // 2),
        ("6GB", 6 * 10**9),
    ],
)
def test_a_plain_size_is_an_exact_card(text: str, total: int) -> None:
    """No context, no slack, nobody else on it, and every dtype."""
    assert parse_virtual(text) == (VirtualSpec(f"virtual:{text}", total),)
    assert VirtualSpec("", 1).allocator == "exact"


def test_a_named_card_has_its_size_context_and_allocator() -> None:
    """A GTX 1660 SUPER: 6 GiB, the native allocator, a context, no bfloat16."""
    (card,) = parse_virtual("gtx-1660-super")
    assert (card.total, card.allocator, card.bf16) == (6 * GIB, "native", False)
    assert card.context > 0
    assert card.name == "virtual:gtx-1660-super"


def test_a_count_opens_equal_cards() -> None:
    """``2x64MiB`` is two cards; a card's own name may be counted too."""
    assert len(parse_virtual("2x64MiB")) == 2
    assert len({spec.total for spec in parse_virtual("3xrtx-3060")}) == 1
    assert len(parse_virtual("3xrtx-3060")) == 3


def test_every_option_is_read() -> None:
    """Allocator, context, others, grain and bf16, in any order, spaces allowed."""
    (card,) = parse_virtual(
        "64MiB, allocator=async, grain=2MiB, context=1MiB, others=3MiB, bf16=no"
    )
    assert card == VirtualSpec(card.name, 64 * MIB, "async", MIB, 3 * MIB, 2 * MIB, bf16=False)


def test_options_change_a_named_card() -> None:
    """A name is a starting point."""
    (card,) = parse_virtual("rtx-4090,allocator=expandable,others=2GiB")
    assert (card.allocator, card.others, card.total) == ("expandable", 2 * GIB, 24 * GIB)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("6", "is not a size"),
        ("0GiB", "is zero"),
        ("-1GiB", "virtual:SIZE"),
        ("", "virtual:SIZE"),
        ("80%", "is not a size"),
        ("rtx-9999", "gtx-1660-super"),
        ("0x64MiB", "1 to 16"),
        ("17x64MiB", "1 to 16"),
        ("64MiB,allocator=best", "allocator=exact|native|async|expandable"),
        ("64MiB,colour=red", "unknown option"),
        ("64MiB,", "unknown option"),
        ("64MiB,bf16=maybe", "unknown option"),
        ("64MiB,grain=0", "grain"),
        ("64MiB,context=64MiB", "nothing left"),
        ("64MiB,others=40MiB,context=30MiB", "nothing left"),
    ],
)
def test_nonsense_is_refused_with_what_is_legal(text: str, says: str) -> None:
    """Each refusal names the value and the legal forms."""
    with pytest.raises(UsageError, match=says.replace("|", r"\|")):
        parse_virtual(text)
