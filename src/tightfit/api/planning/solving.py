"""Turning the question round: the smallest card, the largest picture, the longest clip."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tightfit.api.planning.question import Question
from tightfit.card.known import known_cards
from tightfit.card.outlook import look
from tightfit.errors import UsageError
from tightfit.plan.budget import Budget
from tightfit.plan.describe import at_least
from tightfit.plan.size import Size
from tightfit.plan.solve import SolvedSize, largest_size, most_frames, smallest_bytes

KINDS = ("vram", "size", "frames")
_NAMED = 4
_STEP = 16
"""Pixels: sides of the largest picture are multiples of this, or of what the model takes."""


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        kind: one of `KINDS`.
        value: bytes, a size or frames; None is that nothing fits.
        question: at the answer, where there is one; as it was asked otherwise.
        sentence: for people.
        cards: names from the table of the smallest cards that do, for ``vram``.
    """

    kind: str
    value: int | Size | None
    question: Question
    sentence: str
    cards: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is an answer."""
        return self.value is not None

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        value = asdict(self.value) if isinstance(self.value, Size) else self.value
        return {
            "for": self.kind,
            "value": value,
            "sentence": self.sentence,
            "cards": list(self.cards),
        }


def answer(question: Question, kind: str) -> Answer:
    """Solve `question` for ``vram``, ``size`` or ``frames``.

    Raises `UsageError` for anything else, and where nothing tells one size from another.
    """
    if kind not in KINDS:
        raise UsageError(f"--solve `{kind}` is unknown: use {', '.join(KINDS)}.")
    if kind == "vram":
        return _vram(question)
    blind = [model.name for model in question.models if not question.predicts(model)]
    if blind:
        raise UsageError(
            f"--solve {kind}: what {blind[0]} needs beside its weights is not predicted, so no "
            "size can be told from another."
        )
    seeing = [model for model in question.models if model.steps.makes_clips is not None]
    if not seeing:
        raise UsageError(f"--solve {kind}: {question.models[0].name} sees no picture of the job.")
    stills = [model.name for model in seeing if not model.steps.makes_clips]
    if kind == "frames" and stills:
        raise UsageError(f"--solve frames: {stills[0]} makes pictures; use --solve size.")
    return _size(question) if kind == "size" else _frames(question)


def _vram(question: Question) -> Answer:
    """The smallest budget; and the smallest cards of the table, each planned for as it is."""
    solved = smallest_bytes(lambda budget: question.budgeted(budget).plan().fits)
    if solved.value is None:
        return Answer("vram", None, question, f"No card is large enough for {question.size}.")
    cards = _cards(question)
    named = ""
    if cards:
        which = " with bfloat16" if _needs_bf16(question) else ""
        named = f"; the smallest known cards{which} that do: {', '.join(cards)} (from a table)"
    blind = any(not question.predicts(model) for model in question.models)
    far = ", as far as it is predicted" if blind else ""
    return Answer(
        "vram",
        solved.value,
        question.budgeted(solved.value),
        f"The smallest budget for {question.size}{far}: {at_least(solved.value)}{named}.",
        cards,
    )


def _cards(question: Question) -> tuple[str, ...]:
    known = sorted(known_cards(), key=lambda card: (card.total, card.name))
    found: list[str] = []
    for card in known:
        if card.bf16 is False and _needs_bf16(question):
            continue
        paper = look(f"virtual:{card.name}")
        if question.amount.reserve >= paper.total:
            continue
        amount = Budget(paper.total, question.amount.reserve)
        if replace(question, card=paper, amount=amount).plan().fits:
            found.append(card.name)
        if len(found) == _NAMED:
            break
    return tuple(found)


def _needs_bf16(question: Question) -> bool:
    return any(model.dtype == "bfloat16" for model in question.models)


def _size(question: Question) -> Answer:
    step = max(_STEP, *(model.steps.side for model in question.models))
    solved = largest_size(lambda size: _fits(question, size), question.size, step=step)
    return _sized("size", question, solved)


def _frames(question: Question) -> Answer:
    step = max(model.steps.frames or 1 for model in question.models)
    solved = most_frames(lambda size: _fits(question, size), question.size, step=step)
    return _sized("frames", question, solved)


def _fits(question: Question, size: Size) -> bool:
    """Whether the models take `size`, and the card holds it."""
    try:
        return question.sized(size).plan().fits
    except UsageError:
        return False


def _sized(kind: str, question: Question, solved: SolvedSize) -> Answer:
    name, size = question.card.name, solved.value
    what = "picture" if kind == "size" and question.size.frames == 1 else "clip"
    if size is None:
        sentence = f"Not even the smallest {what} fits {name}."
        return Answer(kind, None, question, sentence)
    most = "longest" if kind == "frames" else "largest"
    more = ", and nothing beyond it was looked at" if solved.at_limit else ""
    return Answer(
        kind,
        size if kind == "size" else size.frames,
        question.sized(size),
        f"The {most} {what} on {name}: {size}{more}.",
    )
