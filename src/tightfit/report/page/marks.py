"""What happened, in words, for the line below the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tightfit.report.page.bands import refused_bytes
from tightfit.report.page.fields import Event, at, real, size, span, text, whole

_MOST = 3000
_MINOR = ("tile", "step", "placed", "streamed_step", "wait")
_LONG = 300


def marks(events: Sequence[Event]) -> list[tuple[float, str]]:
    """(seconds, words) of the events that are told, in order; minor ones thinned if very many."""
    told = sorted((each for each in events if each["event"] in _WORDS), key=at)
    minor = sum(event["event"] in _MINOR for event in told)
    every = -(-minor // _MOST) if minor else 1
    kept, seen, major = [], 0, 0
    for event in told:
        if event["event"] in _MINOR:
            seen += 1
            if seen % every:
                continue
        else:
            major += 1
            if major > _MOST:
                continue
        kept.append((at(event), _WORDS[event["event"]](event)[:_LONG]))
    return kept


def _attempt(event: Event) -> str:
    rung = f"{text(event, 'stage')}: {text(event, 'rung')}"
    return f"{rung} begins with {size(whole(event, 'held_bytes'))} held"


def _done(event: Event) -> str:
    return f"{text(event, 'stage')}: {text(event, 'rung')} done"


def _oom(event: Event) -> str:
    refused = refused_bytes(event)
    what = "" if refused is None else f", {size(refused)} refused"
    return f"{text(event, 'stage')}: {text(event, 'rung')} out of memory{what}"


def _recovered(event: Event) -> str:
    base = whole(event, "baseline_bytes")
    beside = "" if base is None else f" (baseline {size(base)})"
    return f"cleaned up: {size(whole(event, 'held_bytes'))} held{beside}"


def _placed(event: Event) -> str:
    state = text(event, "state") or "placed"
    return f"{text(event, 'block') or 'a block'} {state} ({size(whole(event, 'bytes'))})"


def _left(event: Event) -> str:
    who = text(event, "block", "network") or "weights"
    word = {"rests": "rests on the host"}.get(event["event"], event["event"])
    return f"{who} {word} ({size(whole(event, 'bytes'))})"


def _moved(event: Event) -> str:
    amounts = f"{size(whole(event, 'before_bytes'))} to {size(whole(event, 'bytes'))} resident"
    return f"{text(event, 'network') or 'weights'} placed anew, {amounts}: {text(event, 'why')}"


def _tile(event: Event) -> str:
    return f"{text(event, 'rung')}: {text(event, 'done')} of {text(event, 'total')}"


def _streamed(event: Event) -> str:
    times = real(event, "times_limit")
    beside = "" if times is None else f", {times:.2f} × its limit"
    return f"a streamed step took {span(real(event, 'seconds'))}{beside}"


def _wait(event: Event) -> str:
    return f"waited {span(real(event, 'seconds'))}: {text(event, 'reason') or 'no reason given'}"


_WORDS: dict[str, Callable[[Event], str]] = {
    "stage": lambda event: f"stage: {text(event, 'stage')}",
    "attempt": _attempt,
    "done": _done,
    "oom": _oom,
    "recovered": _recovered,
    "skipped": lambda event: f"{text(event, 'rung')} skipped: {text(event, 'reason')}",
    "tile": _tile,
    "baseline": lambda event: f"baseline: {size(whole(event, 'bytes'))}",
    "end": lambda event: f"the end: {size(whole(event, 'held_bytes'))} held",
    "step": lambda event: f"step {text(event, 'done')} of {text(event, 'total')} done",
    "plan": lambda event: f"planned for {size(whole(event, 'budget_bytes', 'budget'))}",
    "placed": _placed,
    "evicted": _left,
    "rests": _left,
    "moved": _moved,
    "ring": lambda event: f"a ring of {text(event, 'slots')} slots ({size(whole(event, 'bytes'))})",
    "unseen": lambda event: text(event, "text"),
    "streamed_step": _streamed,
    "wait": _wait,
    "library_workspace": lambda event: f"libraries keep {size(whole(event, 'bytes'))} as scratch",
    "unexplained": lambda event: f"{size(whole(event, 'bytes'))} that no object of Python explains",
    "leak": lambda event: f"stayed: {size(whole(event, 'bytes'))} {text(event, 'dtype')}",
}
