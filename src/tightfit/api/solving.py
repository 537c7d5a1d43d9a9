"""Turning the question round: the smallest card, the largest picture, the longest clip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tightfit.api.planning import Question
from tightfit.card.known import known_cards
from tightfit.card.outlook import look
from tightfit.errors import UsageError
from tightfit.plan.budget import Budget
from tightfit.plan.plan import Plan
from tightfit.plan.size import Size
from tightfit.plan.solve import largest_size, most_frames, smallest_bytes
from tightfit.units import format_bytes

KINDS = ("vram", "size", "frames")
_NAMED = 4


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        kind: one of `KINDS`.
        value: bytes, a size or frames; None is that nothing fits.
        plan: at the answer; None where there is none.
        sentence: for people.
        cards: names from the table of the smallest cards that do, for ``vram``.
    """

    kind: str
    value: int | Size | None
    plan: Plan | None
    sentence: str
    cards: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is an answer."""
        return self.value is not None

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        value: Any = self.value
        if isinstance(value, Size):
            value = {
                "width": value.width,
                "height": value.height,
                "frames": value.frames,
                "batch": value.batch,
            }
        return {"for": self.kind, "value": value, "cards": list(self.cards)}


def answer(question: Question, kind: str) -> Answer:
    """Solve `question` for ``vram``, ``size`` or ``frames``.

    Raises `UsageError` for anything else, and where what is not predicted would decide.
    """
    if kind not in KINDS:
        raise UsageError(f"--solve `{kind}` is unknown: use {', '.join(KINDS)}.")
    blind = [model.name for model in question.models if not question.predicts(model)]
    if blind and kind != "vram":
        raise UsageError(
            f"--solve {kind}: what {blind[0]} needs beside its weights is not predicted, so no "
            "size can be told from another."
        )
    return {"vram": _vram, "size": _size, "frames": _frames}[kind](question)


def _vram(question: Question) -> Answer:
    """The smallest budget; and the smallest cards of the table, each planned for as it is."""
    solved = smallest_bytes(lambda budget: question.plan(budget=budget).fits)
    if solved.value is None:
        return Answer("vram", None, None, "No card is large enough for this job.")
    cards = _cards(question)
    named = f"; the smallest cards that do are {', '.join(cards)} (from a table)" if cards else ""
    return Answer(
        "vram",
        solved.value,
        question.plan(budget=solved.value),
        f"The smallest budget for {question.size}: {format_bytes(solved.value)}{named}.",
        cards,
    )


def _cards(question: Question) -> tuple[str, ...]:
    known = sorted(known_cards(), key=lambda card: (card.total, card.name))
    found: list[str] = []
    for card in known:
        paper = look(f"virtual:{card.name}")
        amount = Budget(paper.total, question.amount.reserve)
        on_it = replace(question, card=paper, amount=amount)
        if amount.reserve < paper.total and on_it.plan().fits:
            found.append(card.name)
        if len(found) == _NAMED:
            break
    return tuple(found)


def _size(question: Question) -> Answer:
    solved = largest_size(lambda size: question.plan(size=size).fits, question.size)
    return _sized("size", question, solved.value, at_limit=solved.at_limit)


def _frames(question: Question) -> Answer:
    solved = most_frames(lambda size: question.plan(size=size).fits, question.size)
    return _sized("frames", question, solved.value, at_limit=solved.at_limit)


def _sized(kind: str, question: Question, size: Size | None, *, at_limit: bool) -> Answer:
    name = question.card.name
    what = "picture" if kind == "size" else "clip"
    if size is None:
        return Answer(kind, None, None, f"Not even the smallest {what} fits {name}.")
    more = ", and more was not looked at" if at_limit else ""
    return Answer(
        kind,
        size if kind == "size" else size.frames,
        question.plan(size=size),
        f"The {'largest picture' if kind == 'size' else 'longest clip'} on {name}: {size}{more}.",
    )
