"""One way to do a stage, and what became of trying it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

PROBE = "probe"
"""The stage of tries that only measure."""


def _unknown() -> None:
    """A need that nobody can predict."""


def _nothing() -> None:
    """There is nothing to say."""


def _nobody(measured: int | None, held: bool) -> None:
    """Nobody learns from this try."""
    del measured, held


@dataclass(frozen=True)
class Rung(Generic[T]):
    """One way to do a stage.

    Attributes:
        name: for people, such as ``whole`` or ``tiles 256x256``.
        run: does it; called at most once per state of the card.
        tile: (height, width) or (frames, height, width) in samples, None for a whole run.
        need: predicts the bytes beyond the baseline; its answer may be None, unknown.
        prepare: frees memory first and says how many bytes; 0 means that nothing changed.
        key: two rungs with equal keys are the same try; by default name and tile.
        exact: the result differs from a whole run by rounding alone.
        tell: told after a try how many bytes it took, and whether it held. What was held before and
            what it left behind (a library's own workspace) do not count: the result must not lie
            on the card.
        probe: it only measures: its value is dropped, and the next rung is tried.
        barred: why it must not be tried, whatever room there is; None for no reason.
        error_bound: after it held: the relative rms that it stays within, against a whole run;
            None is unknown.
        bears: so many workspaces may be refused in it, and the next such job tries it again: it
            has many operators, of which one got by with less.
    """

    name: str
    run: Callable[[], T]
    tile: tuple[int, ...] | None = None
    need: Callable[[], int | None] = _unknown
    prepare: Callable[[], int] | None = None
    key: Hashable = None
    exact: bool = True
    tell: Callable[[int | None, bool], None] = _nobody
    probe: bool = False
    barred: Callable[[], str | None] = _nothing
    error_bound: Callable[[], float | None] = _nothing
    bears: int = 0

    @property
    def identity(self) -> Hashable:
        """What makes this try different from others."""
        return (self.name, self.tile) if self.key is None else self.key


@dataclass(frozen=True)
class Attempt:
    """What became of one rung; the fields are those of the report."""

    stage: str
    rung: str
    outcome: str
    reason: str | None = None
    tile: tuple[int, ...] | None = None
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    held_before_bytes: int | None = None
    baseline_bytes: int | None = None
    refusals: int | None = None
    exact: bool = True
    error_bound: float | None = None


@dataclass(frozen=True)
class Stage:
    """What is being done, in words: for errors, traces and lessons.

    Attributes:
        name: ``encode``, ``decode``, ``load``.
        sentence: the first line of an error, ``Not enough memory to …``.
        advice: what the user can change.
        lesson: the part of a lesson's key that identifies the job; None learns nothing.
    """

    name: str
    sentence: str
    advice: str = "a larger budget, or a smaller input"
    lesson: str | None = None
