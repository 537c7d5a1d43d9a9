"""Bytes in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.units import GIB, KIB, MIB, format_bytes, parse_bytes, parse_reserve, parse_share


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("96B", 96),
        ("1KB", 1000),
        ("1KiB", KIB),
        ("512m", 512 * MIB),
        ("1.5g", 3 * GIB // 2),
        (" 7.5 gib ", 15 * GIB // 2),
        (".5MiB", MIB // 2),
        ("2GB", 2 * 10**9),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    """Whatever the case; `g` is GiB, `m` is MiB."""
    assert parse_bytes(text) == parse_share(text).of(2**50) == parse_reserve(text) == size


@pytest.mark.parametrize(
    "text",
    ["512", "0", "0GiB", "-1", "1e3MiB", "GiB", "6 GiB!", "", "1,5GiB", "99999999TiB", "nan"],
)
def test_what_is_no_size_is_refused_with_the_legal_forms(text: str) -> None:
    """A bare number, zero and nonsense, with the text that was given."""
    with pytest.raises(UsageError, match="such as 6GiB") as caught:
        parse_bytes(text, name="--vram")
    assert f"--vram `{text}`" in str(caught.value)


@pytest.mark.parametrize(("text", "size"), [("80%", 80), ("100%", 100), ("-30B", 70)])
def test_a_share_depends_on_the_card(text: str, size: int) -> None:
    """A percentage of its total, or all but so much."""
    assert parse_share(text).of(100) == size


@pytest.mark.parametrize("text", ["0%", "101%", "-5%", "x%", "nan%", "-0B", "-", "--1GiB", "0B"])
def test_a_share_that_cannot_be_is_refused(text: str) -> None:
    """Outside of 0 to 100 %, or nothing."""
    with pytest.raises(UsageError, match="--vram"):
        parse_share(text)


def test_what_leaves_nothing_of_a_card_is_refused_with_its_total() -> None:
    """Known only once the card is; also a share of less than a byte."""
    with pytest.raises(UsageError, match=r"leaves nothing.*1\.0 GiB"):
        parse_share("-1GiB").of(GIB)
    with pytest.raises(UsageError, match="leaves nothing"):
        parse_share("0.5%").of(100)


def test_nothing_may_be_reserved() -> None:
    """Zero is legal there, with and without a unit; less is not."""
    assert parse_reserve("0") == parse_reserve("0B") == 0
    with pytest.raises(UsageError, match="or 0"):
        parse_reserve("-1")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (MIB - 1, "1.0 MiB"),
        (GIB - 1, "1.0 GiB"),
        (-2 * GIB, "-2.0 GiB"),
    ],
)
def test_a_size_for_people_has_one_decimal_and_the_unit_that_fits(size: int, text: str) -> None:
    """Never 1024.0 of the smaller unit."""
    assert format_bytes(size) == text


@given(st.integers(1, 2**60))
def test_a_size_that_was_printed_can_be_read_again(size: int) -> None:
    """To the precision of what was printed."""
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.06)
