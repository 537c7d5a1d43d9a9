"""What of a failed try was held while the next ones ran."""

from __future__ import annotations

from tests.report.page import records
from tests.report.page.records import FLOOR, MIB
from tightfit.report.page import page
from tightfit.report.page.bands import Band, Kept, kept


def test_a_retry_above_what_failed_shows_a_bar() -> None:
    """From the floor of before to what was held all through it, for as long as it ran."""
    bands = [
        Band("whole", 0, 1, "oom", held=FLOOR),
        Band("tiles 512", 1, 2, "oom", held=FLOOR + 500 * MIB, floor=FLOOR + 400 * MIB),
        Band("tiles 256", 2, 9, "ok", held=FLOOR + 600 * MIB),
        Band("another job", 9, 10, "ok", held=FLOOR + 600 * MIB),
    ]
    assert kept(bands) == [Kept(1, 2, FLOOR, 400 * MIB), Kept(2, 9, FLOOR, 600 * MIB)]


def test_a_try_that_was_cleaned_up_after_leaves_none() -> None:
    """Nor does one of which nothing is known."""
    failed = Band("whole", 0, 1, "oom", held=FLOOR)
    assert kept([failed, Band("strips", 1, 2, held=FLOOR + MIB)]) == []
    assert kept([failed, Band("strips", 1, 2)]) == []
    assert kept([Band("whole", 0, 1, "oom"), Band("strips", 1, 2, held=FLOOR)]) == []


def test_where_all_came_back_is_marked() -> None:
    """With what was left; a try that is still held has no such mark."""
    back = page(records.of(records.seed_job()))
    assert f'class="back" data-a="2.45" data-bytes="{FLOOR}"' in back
    assert "✓ back at 1.1 GiB" in back
    assert "back at" not in page(records.of(records.seed_job(held_after_oom=FLOOR + 500 * MIB)))


def test_the_bar_is_on_the_page_with_its_bytes() -> None:
    """And where nothing stayed neither it nor its legend is."""
    held = page(records.of(records.seed_job(held_after_oom=FLOOR + 500 * MIB)))
    assert f'class="kept" data-a="2.5" data-b="5.0" data-bytes="{500 * MIB}"' in held
    assert "500.0 MiB of a failed try, still held" in held
    assert "still held" not in page(records.of(records.seed_job()))
