"""The table that the second seed was found by."""

from __future__ import annotations

import pytest

import tightfit
from tests.report.made import MIB, placed, trace
from tests.streaming import Net
from tightfit.allocators import KINDS
from tightfit.card import open_card
from tightfit.report.modules import modules, table
from tightfit.report.trace_file import Trace

SEED = trace(
    placed(0, 1280, 1280, 1280),
    placed(1, 320, 1600, 1600),
    placed(2, 40, 1664, 1640),
    placed(3, 40, 1696, 1680),
    placed(4, 40, 1728, 1720),
    placed(5, 10, 1728, 1730),
    card={"allocator": "async"},
)


def test_each_block_has_reserved_its_growth_allocated_and_its_size() -> None:
    """In the words of the report that the table is from."""
    lines = table(SEED)
    assert lines[0].startswith("[0] reserved 1.2 GiB (+1.2 GiB), allocated 1.2 GiB, module 1.2 GiB")
    assert "transformer: blocks.0, resident" in lines[0]
    assert "(+64.0 MiB), allocated 1.6 GiB, module 40.0 MiB" in lines[2]
    assert [row.grew for row in modules(SEED)] == [
        size * MIB for size in (1280, 320, 64, 32, 32, 0)
    ]


def test_the_slack_names_the_block_that_made_it_grow() -> None:
    """The one that added most comes first; those that used it up are not named."""
    told = trace(placed(0, 40, 64, 40), placed(1, 40, 96, 80), placed(2, 40, 160, 120))
    last = table(told)[-1]
    assert last.startswith("slack: 40.0 MiB (reserved 160.0 MiB less allocated 120.0 MiB)")
    assert (
        "it grew with transformer: blocks.0 (+24.0 MiB), transformer: blocks.2 (+24.0 MiB)" in last
    )
    assert "blocks.1" not in last


def test_slots_have_a_row_so_that_no_block_is_blamed_for_them() -> None:
    """Streamed blocks take nothing of the card by themselves."""
    ring = {"event": "ring", "bytes": 60 * MIB, "slots": 2, "network": "transformer"}
    ring |= {"reserved_bytes": 100 * MIB, "allocated_bytes": 100 * MIB}
    rows = modules(trace(placed(0, 40, 40, 40), ring, placed(1, 30, 100, 100, state="streamed")))
    assert [(row.name, row.grew) for row in rows] == [
        ("transformer: blocks.0", 40 * MIB),
        ("transformer: ring of 2", 60 * MIB),
        ("transformer: blocks.1", 0),
    ]


def test_a_network_that_comes_after_another_grows_from_what_that_one_left() -> None:
    """What was freed in between is nobody's growth."""
    left = {"event": "memory", "allocated_bytes": 10 * MIB, "reserved_bytes": 20 * MIB}
    again = placed(1, 40, 64, 50)
    rows = modules(trace(placed(0, 90, 96, 90), left, {"event": "plan"}, again))
    assert [(row.grew, row.loosened) for row in rows] == [
        (96 * MIB, 6 * MIB),
        (44 * MIB, 4 * MIB),
    ]


def test_a_card_without_books_has_sizes_alone() -> None:
    """Unknown is not zero."""
    told = trace(placed(0, 40, 0, 0, reserved_bytes=None, allocated_bytes=None))
    assert table(told) == [
        "[0] module 40.0 MiB  transformer: blocks.0, resident",
        "slack: not known; this card keeps no books",
    ]


def test_a_trace_without_blocks_says_so() -> None:
    """Rather than an empty table."""
    assert table(trace()) == ["no block was placed while this trace was written"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_allocator_fills_the_table(kind: str) -> None:
    """A fitted module tells each block once; the last row is what the card holds."""
    card = open_card(f"virtual:1GiB,allocator={kind}")
    module = Net(64, (0, 1, 2, 3)).eval()
    tightfit.fit(module, card=card)
    recorder = tightfit.fitted(module).teller.recorder
    told = Trace(recorder.header(), tuple(recorder.events()))
    rows = modules(told)
    now = card.read()
    tightfit.unfit(module)
    assert len({row.name for row in rows}) == len(rows) > 3
    assert (rows[-1].reserved, rows[-1].allocated) == (now.reserved, now.allocated)
    assert sum(row.grew or 0 for row in rows) == now.reserved
    assert sum(row.loosened or 0 for row in rows) == now.slack
    assert f"slack under {kind}" in table(told)[-1]
