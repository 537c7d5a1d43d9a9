"""Letting go of what an exception holds."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from tightfit.card import open_card
from tightfit.run.ladder.release import chain, cut, empty_frames, in_one_line, leaving_nothing


class Load:
    """Stands for gigabytes."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """What a cycle holds stays: nothing here may need a collection."""
    gc.disable()
    yield
    gc.enable()


def caught(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


loads: list[weakref.ref[Load]] = []


def failing(message: str = "full") -> None:
    load = Load()
    loads.append(weakref.ref(load))
    raise torch.OutOfMemoryError(message)


def from_cause() -> None:
    load = Load()
    loads.append(weakref.ref(load))
    try:
        failing()
    except torch.OutOfMemoryError as error:
        raise RuntimeError("second") from error


def in_context() -> None:
    try:
        failing()
    finally:
        failing("while cleaning up")


def hidden_context() -> None:
    try:
        failing()
    except torch.OutOfMemoryError:
        raise KeyError("hidden") from None


def in_a_group() -> None:
    raise ExceptionGroup("tasks", [caught(failing), caught(from_cause)])  # type: ignore[list-item]


def through_a_generator() -> None:
    def generate() -> Iterator[int]:
        load = Load()
        loads.append(weakref.ref(load))
        yield 1
        failing()

    for _ in generate():
        pass


@pytest.mark.parametrize(
    "work", [failing, from_cause, in_context, hidden_context, in_a_group, through_a_generator]
)
@pytest.mark.parametrize("let_go", [cut, empty_frames])
def test_nothing_is_held_though_somebody_keeps_the_error(
    work: Callable[[], None], let_go: Callable[[BaseException], object]
) -> None:
    """Causes, contexts, hidden contexts, groups and generators: the locals of all are gone."""
    loads.clear()
    kept = caught(work)
    assert any(load() is not None for load in loads)
    let_go(kept)
    assert loads
    assert all(load() is None for load in loads)


def test_the_fact_behind_it_an_error_holds_frames_only_inside_except() -> None:
    """Alive inside `except`, gone right after it without a collection, if nobody stored it."""
    loads.clear()
    try:
        failing()
    except torch.OutOfMemoryError:
        assert loads[0]() is not None
    assert loads[0]() is None


def test_a_traceback_that_was_emptied_can_still_be_printed() -> None:
    """Line numbers and names stay; only the locals go."""
    error = caught(from_cause)
    empty_frames(error)
    assert "in from_cause" in "".join(traceback.format_exception(error))


def test_a_traceback_that_was_cut_is_gone_along_the_chain() -> None:
    """And the first line of the text is what remains."""
    error = caught(from_cause)
    assert cut(error) == "RuntimeError: second"
    assert all(link.__traceback__ is None for link in chain(error))


def test_frames_that_still_run_are_left_alone() -> None:
    """The caller's own locals are not touched."""
    mine = Load()
    empty_frames(caught(failing))
    assert isinstance(mine, Load)


def test_a_chain_that_goes_in_circles_ends() -> None:
    """Each error once."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__context__ = two, one
    assert list(chain(one)) == [one, two]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb\nc"), "ValueError: a"),
        (ValueError(), "ValueError:"),
        (ValueError("\nb"), "ValueError:"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 288),
    ],
)
def test_an_error_is_told_in_one_line(error: BaseException, line: str) -> None:
    """Long and empty ones too."""
    assert in_one_line(error).rstrip() == line


def test_an_error_that_leaves_holds_nothing_of_the_card() -> None:
    """Inside the caller's own handler, the card is what it was; cycles and caches are gone."""
    card = open_card("virtual:64MiB,allocator=native")

    def work() -> None:
        tensor = torch.zeros(1024, device=card.device)
        cycle: list[object] = [tensor]
        cycle.append(cycle)
        raise KeyError("stop")

    with pytest.raises(KeyError) as stored, leaving_nothing(card):
        work()
    assert stored.value.__traceback__ is not None
    assert (card.read().allocated, card.read().reserved) == (0, 0)


def test_a_broken_device_does_not_hide_what_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimming fails too then; the first error is the one that is told."""
    card = open_card("virtual:64MiB")

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(card, "trim", broken)
    with pytest.raises(KeyError), leaving_nothing(card):
        raise KeyError("first")
