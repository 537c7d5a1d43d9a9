"""Items one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.common import virtual
from tightfit.api.batches.batch import Batch, run
from tightfit.api.batches.items import Item
from tightfit.errors import Cancelled, InputError, MemoryShortage
from tightfit.report.record import Report

DONE = Report("encode", {}, {}, {}, 0)


def batch(*errors: BaseException | None, kept: frozenset[int] = frozenset()) -> Batch:
    """Of items that end in these errors."""
    items = [Item(Path(str(number)), Path(f"{number}.out")) for number in range(len(errors))]

    def do(item: Item) -> Report:
        error = errors[int(item.source.name)]
        if error is not None:
            raise error
        return DONE

    card = virtual("1MiB")
    return run("encode", items, do, lambda item: int(item.source.name) in kept, card=card)


def test_what_fails_stops_nothing() -> None:
    """Errors of ours keep their sentence, those of others become one."""
    done = batch(None, InputError("bad"), ValueError("two\nlines"), MemoryShortage("large"), None)
    outcomes = [each.outcome for each in done.items]
    assert outcomes == ["written", "failed", "failed", "failed", "written"]
    assert [each.error for each in done.items] == [
        *(None, "bad", "The job failed: ValueError: two", "large", None)
    ]
    assert done.summary == "5 inputs: 2 written, 3 failed"
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([None, None], 0),
        ([InputError("a"), InputError("b")], 2),
        ([MemoryShortage("a")], 3),
        ([MemoryShortage("a"), InputError("b")], 1),
        ([InputError("a"), None], 1),
    ],
)
def test_the_exit_code_tells_some_from_all(errors: list[Exception | None], code: int) -> None:
    """Some failed: 1. All for one reason: the code of that."""
    assert batch(*errors).exit_code == code


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Cancelled])
def test_an_interrupt_ends_it_and_tells_what_is_done(stop: type[BaseException]) -> None:
    """A cancel is not an item that failed."""
    with pytest.raises(stop) as ended:
        batch(None, stop(), None)
    assert ended.value.__notes__ == ["1 of 3 are done; the same command goes on from there"]


def test_an_interrupt_that_a_library_swallowed_ends_it_all_the_same() -> None:
    """Who looks on may end it, between two items."""

    def enough(done: object) -> None:
        raise KeyboardInterrupt

    items = [Item(Path("a"), Path("b"))] * 3
    with pytest.raises(KeyboardInterrupt) as ended:
        run(
            *("encode", items, lambda _: DONE, lambda _: False),
            card=virtual("1MiB"),
            finish=enough,
        )
    assert ended.value.__notes__ == ["1 of 3 are done; the same command goes on from there"]


def test_what_is_kept_is_not_done() -> None:
    """And counts as good."""
    done = batch(None, ValueError("never"), kept=frozenset({1}))
    assert done.good
    assert done.summary == "2 inputs: 1 written, 1 were there already, 0 failed"
    assert done.as_dict()["kept"] == 1
