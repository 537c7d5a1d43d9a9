"""Climbing down: what is tried, in which order, and what is between two tries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import Cancelled, MemoryShortage
from tightfit.run.cancel import Cancel
from tightfit.run.ladder import Ladder, Lessons, Rung, Stage
from tightfit.testing import Form, faults, oom_after
from tightfit.units import MIB

STAGE = Stage("work", "Not enough memory to work.", advice="less work")
OOM_FORMS = [form for form in Form if form is not Form.ILLEGAL_ACCESS]


@pytest.fixture
def card() -> VirtualCard:
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


def ladder_on(card: VirtualCard, **more: Any) -> Ladder:
    return Ladder(card, budget=64 * MIB, **more)


def mib(card: VirtualCard, size: int) -> torch.Tensor:
    return torch.zeros(size * MIB // 4, device=card.device)


def uses(card: VirtualCard, size: int, name: str = "") -> Rung[str]:
    """A rung that needs so many MiB for a moment."""
    name = name or f"{size} MiB"

    def run() -> str:
        mib(card, size)
        return name

    return Rung(name, run)


def outcomes(ladder: Ladder) -> list[tuple[str, str]]:
    return [(attempt.rung, attempt.outcome) for attempt in ladder.attempts]


# Order


def test_the_first_rung_that_holds_gives_the_value(card: VirtualCard) -> None:
    """The others are not even looked at."""
    ladder = ladder_on(card)

    def never() -> str:
        raise AssertionError

    assert ladder.climb(STAGE, [uses(card, 8), Rung("never", never)]) == "8 MiB"
    assert outcomes(ladder) == [("8 MiB", "ok")]
    assert ladder.attempts[0].peak_bytes == 8 * MIB


def test_a_rung_that_runs_out_of_memory_is_followed_by_the_next(card: VirtualCard) -> None:
    """Both are recorded; the second begins with what the first began with."""
    kept = mib(card, 4)
    ladder = ladder_on(card)
    assert ladder.climb(STAGE, [uses(card, 80), uses(card, 61), uses(card, 30)]) == "30 MiB"
    assert outcomes(ladder) == [("80 MiB", "oom"), ("61 MiB", "oom"), ("30 MiB", "ok")]
    assert {attempt.held_before_bytes for attempt in ladder.attempts} == {4 * MIB}
    assert {attempt.baseline_bytes for attempt in ladder.attempts} == {4 * MIB}
    assert ladder.peak_bytes == 34 * MIB
    assert "out of memory" in (ladder.attempts[0].reason or "")
    assert card.read().allocated == kept.nbytes


def test_a_quiet_stage_that_just_works_is_not_recorded(card: VirtualCard) -> None:
    """Loading is not news unless it took two tries."""
    ladder = ladder_on(card)
    ladder.climb(STAGE, [uses(card, 8)], quiet=True)
    assert ladder.attempts == []
    ladder.climb(STAGE, [uses(card, 80), uses(card, 8)], quiet=True)
    assert outcomes(ladder) == [("80 MiB", "oom"), ("8 MiB", "ok")]


def test_a_rung_known_not_to_fit_is_skipped_without_trying(card: VirtualCard) -> None:
    """Its reason has both figures; an unknown need is tried."""
    ladder = ladder_on(card)

    def never() -> str:
        raise AssertionError

    rungs = [Rung("big", never, need=lambda: 65 * MIB), uses(card, 8)]
    assert ladder.climb(STAGE, rungs) == "8 MiB"
    assert outcomes(ladder) == [("big", "skipped"), ("8 MiB", "ok")]
    assert ladder.attempts[0].reason == "needs 65.0 MiB, 64.0 MiB is free"


def test_a_rung_that_needs_exactly_the_room_is_tried(card: VirtualCard) -> None:
    """The limit itself is allowed."""
    rung = Rung("all", uses(card, 64).run, need=lambda: 64 * MIB)
    assert ladder_on(card).climb(STAGE, [rung]) == "64 MiB"


def test_without_a_planner_every_rung_is_tried(card: VirtualCard) -> None:
    """A need is not even asked for."""

    def asked() -> int:
        raise AssertionError

    ladder = ladder_on(card, ask=False)
    ladder.climb(STAGE, [Rung("80", uses(card, 80).run, need=asked), uses(card, 8)])
    assert outcomes(ladder) == [("80", "oom"), ("8 MiB", "ok")]


def test_the_room_knows_budget_others_context_and_reserve() -> None:
    """The sum of DESIGN, from a reading of the card."""
    card = open_card("virtual:64MiB,context=4MiB,others=10MiB")
    assert isinstance(card, VirtualCard)
    kept = mib(card, 3)
    assert Ladder(card, budget=32 * MIB).room() == 29 * MIB
    assert Ladder(card, budget=64 * MIB, reserve=5 * MIB).room() == (64 - 4 - 10 - 5 - 3) * MIB
    del kept


# Never twice the same


def test_never_two_identical_tries(card: VirtualCard) -> None:
    """A rung with the key of one that failed is skipped, whatever its name."""
    ladder = ladder_on(card, ask=False)
    same = Rung("again", uses(card, 80).run, key=("80 MiB", None))
    assert ladder.climb(STAGE, [uses(card, 80), same, uses(card, 8)]) == "8 MiB"
    assert outcomes(ladder) == [("80 MiB", "oom"), ("again", "skipped"), ("8 MiB", "ok")]
    assert ladder.attempts[1].reason == "the same try again"


def test_the_same_try_is_made_again_once_memory_was_freed(card: VirtualCard) -> None:
    """Eviction changes the card; each attempt has the baseline of its own start."""
    idle = [mib(card, 40)]

    def evict() -> int:
        idle.clear()
        return 40 * MIB

    ladder = ladder_on(card, ask=False)
    whole = uses(card, 50)
    rungs = [whole, Rung("evict", whole.run, prepare=evict, key=whole.identity)]
    assert ladder.climb(STAGE, rungs) == "50 MiB"
    assert outcomes(ladder) == [("50 MiB", "oom"), ("evict", "ok")]
    assert [a.baseline_bytes for a in ladder.attempts] == [40 * MIB, 0]
    assert [a.held_before_bytes for a in ladder.attempts] == [40 * MIB, 0]


def test_an_eviction_that_frees_nothing_is_skipped(card: VirtualCard) -> None:
    """And leads to no second identical try."""
    ladder = ladder_on(card, ask=False)
    whole = uses(card, 80)
    rungs = [whole, Rung("evict", whole.run, prepare=lambda: 0, key=whole.identity), uses(card, 8)]
    ladder.climb(STAGE, rungs)
    assert outcomes(ladder)[1] == ("evict", "skipped")
    assert ladder.attempts[1].reason == "nothing to free"


def test_an_eviction_that_fails_is_noted_and_the_ladder_goes_on(card: VirtualCard) -> None:
    """Its error is not the job's error."""

    def evict() -> int:
        raise ValueError("no such model")

    ladder = ladder_on(card, ask=False)
    ladder.climb(STAGE, [Rung("evict", uses(card, 1).run, prepare=evict), uses(card, 8)])
    assert outcomes(ladder) == [("evict", "skipped"), ("8 MiB", "ok")]
    assert ladder.notes == ["freeing memory failed: ValueError: no such model"]


# Between two tries


stored: list[BaseException] = []


def test_an_error_that_somebody_stored_holds_nothing(card: VirtualCard) -> None:
    """A logger that keeps the exception does not cost the next rung its room."""
    stored.clear()

    def run() -> str:
        kept = mib(card, 40)
        try:
            mib(card, 40)
        except torch.OutOfMemoryError as error:
            stored.append(error)
            raise
        return str(kept.shape)

    ladder = ladder_on(card)
    assert ladder.climb(STAGE, [Rung("whole", run), uses(card, 60)]) == "60 MiB"
    assert stored
    assert ladder.attempts[1].held_before_bytes == 0
    assert not ladder.notes


def test_a_finished_future_that_somebody_keeps_holds_nothing(card: VirtualCard) -> None:
    """A module that works in a thread of a pool, whose future outlives the call."""
    futures: list[Future[str]] = []

    def work() -> str:
        kept = mib(card, 40)
        mib(card, 40)
        return str(kept.shape)

    def run() -> str:
        with ThreadPoolExecutor(1) as pool:
            futures.append(pool.submit(work))
            return futures[0].result()

    ladder = ladder_on(card)
    assert ladder.climb(STAGE, [Rung("whole", run), uses(card, 60)]) == "60 MiB"
    assert isinstance(futures[0].exception(), torch.OutOfMemoryError)
    assert ladder.attempts[1].held_before_bytes == 0


def test_cycles_of_the_failed_try_are_collected(card: VirtualCard) -> None:
    """A closure that refers to itself does not cost the next rung its room."""

    def run() -> str:
        cycle: list[object] = [mib(card, 40)]
        cycle.append(cycle)
        mib(card, 40)
        return "never"

    ladder = ladder_on(card)
    assert ladder.climb(STAGE, [Rung("whole", run), uses(card, 60)]) == "60 MiB"
    assert ladder.attempts[1].held_before_bytes == 0


def test_what_cannot_be_released_is_said_and_planned_around(card: VirtualCard) -> None:
    """A global that keeps 10 MiB: the note has the figure, the next try shows it, room is less."""
    leak: list[torch.Tensor] = []

    def run() -> str:
        leak.append(mib(card, 10))
        mib(card, 60)
        return "never"

    ladder = ladder_on(card)
    rungs = [
        Rung("whole", run),
        Rung("too big now", run, need=lambda: 60 * MIB),
        Rung("fits", uses(card, 50).run, need=lambda: 50 * MIB),
    ]
    assert ladder.climb(STAGE, rungs) == "50 MiB"
    assert outcomes(ladder) == [("whole", "oom"), ("too big now", "skipped"), ("fits", "ok")]
    assert [a.baseline_bytes for a in ladder.attempts] == [0, 0, 0]
    assert [a.held_before_bytes for a in ladder.attempts] == [0, 10 * MIB, 10 * MIB]
    assert any("10.0 MiB of the failed try are still held" in note for note in ladder.notes)


class Caching(nn.Module):
    """Keeps a feature on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.feat: list[torch.Tensor | None] = [None] * 2
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1
        self.feat = [None] * 2


def filling(card: VirtualCard, module: Caching) -> Rung[str]:
    def run() -> str:
        module.feat[1] = mib(card, 40)
        mib(card, 40)
        return "never"

    return Rung("whole", run)


def test_o03_a_cache_on_the_module_is_dropped_its_own_way(card: VirtualCard) -> None:
    """The reset hook is called; the reason says that the cache went, and how large it was."""
    module = Caching()
    ladder = ladder_on(card, module=module, module_name="vae", reset=module.reset)
    ladder.climb(STAGE, [filling(card, module), uses(card, 60)])
    assert module.resets
    assert ladder.attempts[0].reason is not None
    assert ladder.attempts[0].reason.endswith("; dropped vae's own cache (40.0 MiB)")
    assert ladder.attempts[1].held_before_bytes == 0


def test_o03_a_cache_without_a_hook_is_dropped_by_name(card: VirtualCard) -> None:
    """The path is in the reason."""
    module = Caching()
    ladder = ladder_on(card, module=module, module_name="vae")
    ladder.climb(STAGE, [filling(card, module), uses(card, 60)])
    assert ladder.attempts[0].reason is not None
    assert ladder.attempts[0].reason.endswith("; dropped vae.feat (1 tensors, 40.0 MiB)")
    assert module.feat == [None, None]


def test_o08_a_hook_that_raises_is_noted_and_the_cache_goes_all_the_same(
    card: VirtualCard,
) -> None:
    """The job is about memory; the hook's own error is a note, told once."""
    module = Caching()

    def broken() -> None:
        raise AssertionError("unlocked twice")

    ladder = ladder_on(card, module=module, module_name="vae", reset=broken)
    assert ladder.climb(STAGE, [filling(card, module), uses(card, 60)]) == "60 MiB"
    assert ladder.notes == ["the module's own clean-up failed: AssertionError: unlocked twice"]


def test_o08_clean_up_that_fails_inside_the_work_does_not_hide_the_reason(
    card: VirtualCard,
) -> None:
    """A `finally` that unlocks twice: the reported error is the OOM, the second is a note."""
    lock = threading.Lock()

    def run() -> str:
        lock.acquire()
        try:
            mib(card, 80)
        finally:
            lock.release()
            lock.release()
        return "never"

    ladder = ladder_on(card)
    with pytest.raises(MemoryShortage) as caught:
        ladder.climb(STAGE, [Rung("whole", run)])
    assert "out of memory" in (ladder.attempts[0].reason or "")
    assert any("release unlocked lock" in note for note in caught.value.__notes__)
    assert not lock.locked()
    assert ladder.climb(STAGE, [uses(card, 8)]) == "8 MiB"


def test_an_error_is_itself_though_the_caller_is_handling_an_oom(card: VirtualCard) -> None:
    """A climb in somebody's handler: not retried, and what they handle keeps its traceback."""

    def run() -> str:
        raise ValueError("a shape that cannot be")

    ladder = ladder_on(card)

    def in_a_handler() -> None:
        try:
            mib(card, 80)
        except torch.OutOfMemoryError:
            with pytest.raises(ValueError, match="a shape"):
                ladder.climb(STAGE, [Rung("whole", run), uses(card, 8)])
            ladder.climb(STAGE, [uses(card, 80), uses(card, 8)])
            raise

    with pytest.raises(torch.OutOfMemoryError) as theirs:
        in_a_handler()
    assert outcomes(ladder) == [("80 MiB", "oom"), ("8 MiB", "ok")]
    assert "mib" in [entry.name for entry in theirs.traceback]


def test_a_device_that_cannot_be_read_any_more_does_not_hide_what_broke_it(
    card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access every question to the driver fails too; the first error is told."""
    module = Caching()

    def dead() -> None:
        raise RuntimeError("the driver does not answer")

    def run() -> str:
        module.feat[1] = mib(card, 1)
        monkeypatch.setattr(card, "read", dead)
        raise RuntimeError("an illegal memory access was encountered")

    ladder = ladder_on(card, module=module, reset=module.reset)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        ladder.climb(STAGE, [Rung("whole", run)])
    assert module.feat == [None, None]


# Every form, at once and late


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("form", OOM_FORMS)
def test_o06_every_form_leads_to_the_next_rung(form: Form, late: bool, card: VirtualCard) -> None:
    """Blamed on the stage and the rung whose allocation it was."""
    ladder = ladder_on(card)
    with oom_after(card, 0, form=form, late=late):
        assert ladder.climb(STAGE, [uses(card, 8), uses(card, 4)]) == "4 MiB"
    assert outcomes(ladder) == [("8 MiB", "oom"), ("4 MiB", "ok")]
    assert ladder.attempts[0].stage == "work"


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_o06_an_illegal_access_leads_nowhere(late: bool, card: VirtualCard) -> None:
    """It passes through as it is; nothing more is tried on a broken device."""
    ladder = ladder_on(card)
    with (
        oom_after(card, 0, form=Form.ILLEGAL_ACCESS, late=late),
        pytest.raises(RuntimeError, match="illegal memory access"),
    ):
        ladder.climb(STAGE, [uses(card, 8), uses(card, 4)])
    assert outcomes(ladder) == []


def test_o06_errors_that_arrive_later_still_belong_to_the_failed_try(card: VirtualCard) -> None:
    """Three kept-back errors do not strike the innocent rung after it."""
    ladder = ladder_on(card)
    with oom_after(card, 0, late=True), oom_after(card, 0, late=True), oom_after(card, 0):
        first = Rung("whole", lambda: [mib(card, 1), mib(card, 1), mib(card, 1)])
        assert ladder.climb(STAGE, [first, uses(card, 4)]) == "4 MiB"
    assert outcomes(ladder) == [("whole", "oom"), ("4 MiB", "ok")]
    assert any("arrived late" in note for note in ladder.notes)


@pytest.mark.parametrize("error", [ValueError("shape"), RuntimeError("shape"), MemoryError()])
def test_other_errors_pass_through_after_the_same_clean_up(
    error: Exception, card: VirtualCard
) -> None:
    """The card and the module are as before, in the caller's very handler."""
    module = Caching()

    def run() -> str:
        kept = module.feat[0] = mib(card, 8)
        raise error
        return str(kept)

    ladder = ladder_on(card, module=module)
    with pytest.raises(type(error)) as caught:
        ladder.climb(STAGE, [Rung("whole", run), uses(card, 4)])
    assert caught.value is error
    assert card.read().allocated == 0
    assert module.feat == [None, None]


# Giving up


def test_o09_no_rung_left_is_one_error_with_the_figures(card: VirtualCard) -> None:
    """What, how much, what was tried, what to do; the attempts are on the error."""
    kept = mib(card, 4)
    card.occupy(8 * MIB)
    ladder = ladder_on(card)
    rungs = [
        Rung("whole", uses(card, 80).run, need=lambda: 80 * MIB),
        Rung("half", uses(card, 54).run, need=lambda: 50 * MIB),
        Rung("least", uses(card, 53).run, need=lambda: 70 * MIB),
    ]
    with pytest.raises(MemoryShortage) as caught:
        ladder.climb(STAGE, rungs)
    assert str(caught.value).splitlines() == [
        "Not enough memory to work.",
        "Needs 74.0 MiB at least; 56.0 MiB can be used on virtual:64MiB "
        "(64.0 MiB in all, 8.0 MiB held by other programs).",
        "Tried: whole (needs 80.0 MiB, 52.0 MiB is free), half (out of memory), "
        "least (needs 70.0 MiB, 52.0 MiB is free).",
        "Try: less work.",
    ]
    assert [attempt.outcome for attempt in caught.value.attempts] == ["skipped", "oom", "skipped"]
    assert caught.value.exit_code == 3
    assert caught.value.__context__ is None
    del kept


def test_a_need_nobody_could_predict_is_more_than_what_there_is(card: VirtualCard) -> None:
    """The sentence does not make up a figure."""
    with pytest.raises(MemoryShortage, match=r"Needs more than 64\.0 MiB"):
        ladder_on(card, ask=False).climb(STAGE, [uses(card, 80)])


def test_a_budget_below_the_card_is_in_the_figures(card: VirtualCard) -> None:
    """So that the user sees which of the two was too small."""
    with (
        card.cap(16 * MIB),
        pytest.raises(MemoryShortage, match=r"64\.0 MiB in all, budget 16\.0 MiB"),
    ):
        Ladder(card, budget=16 * MIB).climb(STAGE, [uses(card, 20)])


def test_cancel_is_looked_at_before_every_rung(card: VirtualCard) -> None:
    """A flag that is set while a rung fails stops the next one."""
    cancel = Cancel()

    def run() -> str:
        cancel.set()
        mib(card, 80)
        return "never"

    ladder = ladder_on(card, cancel=cancel)
    with pytest.raises(Cancelled):
        ladder.climb(STAGE, [Rung("whole", run), uses(card, 4)])
    assert outcomes(ladder) == [("whole", "oom")]


# Silent refusals


def starved(card: VirtualCard, size: int) -> Callable[[], str]:
    def run() -> str:
        x = torch.ones(1, 4, 256, 256, device=card.device)
        if size > 8:
            nn.functional.conv2d(x, torch.ones(4, 4, 3, 3, device=card.device))
        return f"{size}"

    return run


LEARNING = Stage("work", "Not enough memory.", lesson="job")


def test_a_try_short_of_workspace_counts_and_teaches_the_next_job(card: VirtualCard) -> None:
    """It holds, says so, and next time the ladder begins one rung lower."""
    lessons = Lessons()
    rungs = [Rung("fast", starved(card, 16)), Rung("small", starved(card, 8))]
    with faults(
        card, workspace=lambda op, _: 80 * MIB if "conv" in op else 0, silent_workspace=True
    ):
        first = ladder_on(card, lessons=lessons)
        assert first.climb(LEARNING, rungs) == "16"
        assert first.attempts[0].refusals == 1
        assert "1 workspaces were refused without an error" in first.notes[0]
        second = ladder_on(card, lessons=lessons)
        assert second.climb(LEARNING, rungs) == "8"
    assert outcomes(second) == [("fast", "skipped"), ("small", "ok")]
    assert "short of workspace last time" in (second.attempts[0].reason or "")


def test_a_rung_that_was_held_back_is_better_than_none(card: VirtualCard) -> None:
    """Slow beats failing: after all others it is tried."""
    lessons = Lessons()
    lessons.learn("job|fast|None", 3)
    ladder = ladder_on(card, lessons=lessons, ask=False)
    rungs = [Rung("fast", starved(card, 16)), uses(card, 80)]
    assert ladder.climb(LEARNING, rungs) == "16"
    assert outcomes(ladder) == [("fast", "skipped"), ("80 MiB", "oom"), ("fast", "ok")]


def test_a_stage_without_a_lesson_learns_nothing(card: VirtualCard) -> None:
    """Loading is not held back."""
    lessons = Lessons()
    with faults(card, workspace=lambda *_: 80 * MIB, silent_workspace=True):
        ladder_on(card, lessons=lessons).climb(STAGE, [Rung("fast", starved(card, 16))])
        again = ladder_on(card, lessons=lessons)
        again.climb(STAGE, [Rung("fast", starved(card, 16))])
    assert outcomes(again) == [("fast", "ok")]


# What a try tells


def test_a_try_tells_what_it_took_beside_what_it_found_and_what_it_left(card: VirtualCard) -> None:
    """A workspace that a library keeps for good is not taken again by the next call."""
    there, library, told = mib(card, 5), [], []

    def run() -> str:
        library.append(mib(card, 10))
        mib(card, 20)
        return "done"

    ladder_on(card).climb(STAGE, [Rung("work", run, tell=lambda *seen: told.append(seen))])
    assert told == [(20 * MIB, True)]
    del there


def test_a_try_that_failed_or_fell_short_tells_no_size(card: VirtualCard) -> None:
    """Whether it held is told all the same."""
    told: list[tuple[int | None, bool]] = []
    rungs = [replace(uses(card, 80), tell=lambda *seen: told.append(seen))]
    with pytest.raises(MemoryShortage):
        ladder_on(card, ask=False).climb(STAGE, rungs)
    with faults(
        card, workspace=lambda op, _: 80 * MIB if "conv" in op else 0, silent_workspace=True
    ):
        short = Rung("fast", starved(card, 16), tell=lambda *seen: told.append(seen))
        ladder_on(card).climb(STAGE, [short])
    assert [held for _, held in told] == [False, True]
    assert told[1] == (None, True)


def test_a_probe_is_measured_and_gives_nothing(card: VirtualCard) -> None:
    """The next rung gives the value; without one there is an error that does not name it."""
    probe = replace(uses(card, 8, "probe"), probe=True)
    ladder = ladder_on(card)
    assert ladder.climb(STAGE, [probe, uses(card, 4)]) == "4 MiB"
    assert [(a.stage, a.rung, a.outcome) for a in ladder.attempts] == [
        ("probe", "probe", "ok"),
        ("work", "4 MiB", "ok"),
    ]
    with pytest.raises(MemoryShortage) as caught:
        ladder_on(card).climb(STAGE, [probe])
    assert "probe" not in str(caught.value)
    assert "Needs more than" in str(caught.value)


# The trace


def test_the_recorder_is_told_what_happened(card: VirtualCard) -> None:
    """Attempts, failures, recoveries, in order."""
    ladder = ladder_on(card)
    ladder.climb(STAGE, [uses(card, 80), uses(card, 8)])
    kinds = [event["event"] for event in ladder.recorder.events()]
    assert kinds == ["attempt", "oom", "recovered", "attempt", "done"]
