"""One line of advice that follows from the figures, and the figure that it follows from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tightfit.report.page.bands import is_more
from tightfit.report.page.fields import at, mapping, size, span, text, whole
from tightfit.report.page.leaks import Leak
from tightfit.report.page.story import Story

_FAR_FROM_LIMIT = 1.10
_MUCH_SLACK = 0.20
_OFF = 0.15
_MUCH_ROOM = 0.60
_FITS = 0.95
_MOST_KINDS = 2
_NAMED = {
    "exception": "the error that is being handled",
    "module attribute": "what the model keeps on itself",
}
_LETS_GO = {
    "exception": "leave the `except` block",
    "module attribute": "clear what the model keeps",
}


@dataclass(frozen=True)
class Advice:
    """Attributes:
    text: what was seen, and what to do.
    figure: the anchor of the figure on the page: ``memory``, ``lanes`` …; empty for none.
    """

    text: str
    figure: str = ""


def advice(story: Story) -> Advice:
    """The first that applies, the gravest first."""
    rules: tuple[Callable[[Story], Advice | None], ...] = (
        _ended_by_memory,
        _leaking,
        _held_by_the_failed_try,
        _begun_while_held,
        _failed_first,
        _whole_would_fit,
        _stalls,
        _slack,
        _estimate,
        _room_left,
    )
    for rule in rules:
        found = rule(story)
        if found is not None:
            return found
    if story.peak is None:
        return Advice("There is no memory sample in this trace, so there is nothing to advise.")
    budget = f" of {size(story.budget)}" if story.budget else ""
    return Advice(
        f"Nothing to mend: the peak was {size(story.peak_reserved or story.peak)}{budget}, "
        "no try failed, and nothing stayed.",
        "memory",
    )


def _ended_by_memory(story: Story) -> Advice | None:
    last = story.tries[-1] if story.tries else None
    if last is None or not last.failed:
        return None
    short = ""
    if last.refused is not None:
        short = f" when {size(last.refused)} more were asked for"
        if story.budget is not None and last.held_at_refusal is not None:
            missing = last.held_at_refusal + last.refused - story.budget
            if missing > 0:
                short += f", {size(missing)} beyond the budget"
    return Advice(
        f"Memory ended this job: the last try, {last.name}, failed at {size(last.peak)}{short}. "
        "Give it more room, or ask for less: a smaller picture, fewer frames, smaller tiles.",
        "memory",
    )


def _leaking(story: Story) -> Advice | None:
    held = [leak for leak in story.leaks if leak.kind != "workspace"]
    if not held:
        return None
    total = sum(leak.bytes or 0 for leak in held)
    if held[0].moment:
        return _held_meanwhile(held, total)
    chain = " → ".join(held[0].chain) or "a holder that was not found"
    return Advice(
        f"{size(total)} stayed when the work was over; the largest part ({size(held[0].bytes)}) is "
        f"held by {chain}: let go of it there.",
        "leaks",
    )


def _held_meanwhile(held: Sequence[Leak], total: int) -> Advice:
    """What goes by itself, and was in the way until then."""
    kinds: Counter[str] = Counter()
    for leak in held:
        kinds[leak.kind or "a holder that was not found"] += leak.bytes or 0
    most = kinds.most_common(_MOST_KINDS)
    parts = ", ".join(f"{size(amount)} by {_NAMED.get(kind, kind)}" for kind, amount in most)
    what = [_LETS_GO[kind] for kind, _ in most if kind in _LETS_GO]
    return Advice(
        f"{size(total)} were still held {held[0].moment}: {parts}. "
        f"{(' and '.join(what) or 'let go of it').capitalize()} before trying again.",
        "leaks",
    )


def _held_by_the_failed_try(story: Story) -> Advice | None:
    for event in story.trace.events:
        if event["event"] != "recovered":
            continue
        held, base = whole(event, "held_bytes"), whole(event, "baseline_bytes")
        if held is not None and base is not None and is_more(held, base):
            return Advice(
                f"After the failed try {size(held - base)} were still held at "
                f"{span(at(event))}: the floor stands at {size(held)}, above the "
                f"baseline of {size(base)}. `tightfit leaks` names the holder.",
                "memory",
            )
    return None


def _begun_while_held(story: Story) -> Advice | None:
    """A retry that nobody cleaned up for, as one inside an `except` block is."""
    if any(event["event"] == "recovered" for event in story.trace.events):
        return None
    for failed, later in pairwise(story.tries):
        if not failed.failed or failed.held is None or later.held is None:
            continue
        if is_more(later.held, failed.held):
            return Advice(
                f"{later.name} began while {size(later.held - failed.held)} of the failed try were "
                f"still held: the floor rose from {size(failed.held)} to {size(later.held)}. "
                "Leave the `except` block before trying again: its error holds every frame of "
                "what failed.",
                "memory",
            )
    return None


def _failed_first(story: Story) -> Advice | None:
    failed = story.failed
    good = [
        band
        for band in story.tries
        if band.outcome == "ok" and failed and band.start >= failed[-1].stop
    ]
    if not failed or not good:
        return None
    lost = sum(band.stop - band.start for band in failed)
    most = max(failed, key=lambda band: (band.held_at_refusal or 0) + (band.refused or 0))
    wanted = ""
    if most.refused is not None and most.held_at_refusal is not None:
        needed = most.held_at_refusal + most.refused
        wanted = f" It would have needed {size(needed)} at least."
    skipped = ""
    if text(mapping(story.report, "estimate"), "source") == "not asked":
        skipped = " Without --no-estimate a try that is known not to fit is left out."
    many = "The try" if len(failed) == 1 else f"The {len(failed)} tries"
    return Advice(
        f"{many} that ran out of memory took {span(lost)}; {good[-1].name} then did it at "
        f"{size(good[-1].peak)}.{wanted}{skipped}",
        "memory",
    )


def _whole_would_fit(story: Story) -> Advice | None:
    books = story.books
    if books is None or not books.of_whole or not books.estimate or not books.budget:
        return None
    if books.estimate > _FITS * books.budget or not story.tries or story.failed:
        return None
    return Advice(
        f"{story.tries[-1].name} was run, and the whole was estimated at {size(books.estimate)} of "
        f"{size(books.budget)}: --tile auto would run it whole, without the differences of tiles.",
        "ledger",
    )


def _stalls(story: Story) -> Advice | None:
    if story.lanes is None:
        return None
    step = story.lanes.shown
    if step.times_limit is None or step.limit is None:
        return None
    if step.times_limit < _FAR_FROM_LIMIT:
        if step.binds == "copies" and step.compute and step.copying:
            share = 1 - step.compute / step.copying
            return Advice(
                f"Copies bind: step {step.number} copies for {span(step.copying)} and computes for "
                f"{span(step.compute)}. Weights that stay on the card would save up to "
                f"{share:.0%} of the step: more --vram, or packing.",
                "lanes",
            )
        return None
    return Advice(
        f"Step {step.number} took {step.times_limit:.2f} times its limit of {span(step.limit)}: "
        f"compute waited {span(step.stall)} for copies. A wider ring (more --vram) or more packed "
        "blocks would let copies run ahead.",
        "lanes",
    )


def _slack(story: Story) -> Advice | None:
    if not story.peak or not story.peak_reserved:
        return None
    slack = story.peak_reserved - story.peak
    if slack < _MUCH_SLACK * story.peak or slack < 2**20:
        return None
    if story.budget and story.peak_reserved < _MUCH_ROOM * story.budget and not story.failed:
        return None  # there was room enough for it
    used = text(mapping(story.report, "card"), "allocator")
    other = "expandable" if used != "expandable" else "async"
    return Advice(
        f"The allocator took {size(slack)} more than tensors needed (peak reserved "
        f"{size(story.peak_reserved)}, allocated {size(story.peak)}): try --allocator {other}.",
        "memory",
    )


def _estimate(story: Story) -> Advice | None:
    off = story.books.off if story.books is not None else None
    if story.books is None or off is None or abs(off) < _OFF:
        return None
    return Advice(
        f"The estimate ({size(story.books.estimate)}) was {abs(off):.0%} "
        f"{'above' if off > 0 else 'below'} the peak ({size(story.books.peak)}); the next job of "
        "this kind plans with what was measured.",
        "ledger",
    )


def _room_left(story: Story) -> Advice | None:
    most = story.peak_reserved or story.peak
    if not most or not story.budget or most > _MUCH_ROOM * story.budget:
        return None
    return Advice(
        f"{size(story.budget - most)} of the budget were never used: a larger picture, more "
        "frames or a larger batch would fit.",
        "memory",
    )
