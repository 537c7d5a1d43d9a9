"""Every error that tightfit raises on purpose, in one tree.

TightfitError
├── UsageError            a request that cannot be meant: bad option, size, tile, SPEC   exit 2
│   └── InputError        a file that is not what it should be, or cannot be written     exit 2
├── MemoryShortage        memory is the reason, before or after trying                   exit 3
├── JobFailed             the work itself failed (NaN, wrong shape, model error)         exit 1
│   └── BooksError        the ledger of a card does not add up: a defect of ours         exit 1
└── Cancelled             the job was asked to stop and did                              exit 130

A message says what, how much, what was tried and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TightfitError(Exception):
    """The root: catch this to catch everything that tightfit raises on purpose."""

    exit_code = 1
    report: object | None = None
    """What a job that failed has to report, where it got as far as a card."""


class UsageError(TightfitError):
    """The request itself is wrong; nothing was started."""

    exit_code = 2


class InputError(UsageError):
    """A file is missing, damaged, of the wrong kind, or cannot be written."""


class MemoryShortage(TightfitError):
    """The job does not fit the budget.

    Args:
        what: the first sentence, such as ``Not enough memory to decode 81 frames at 1280x720.``
        figures: what it needs against what there is.
        tried: one phrase per rung that was tried or skipped, in order.
        advice: what the user can change.
    """

    exit_code = 3
    attempts: Sequence[object] = ()
    """The rungs that were tried, where a ladder was climbed."""
    recorder: Any = None
    """Who was told of the job, where somebody was; the log of the job is written from it."""

    def __init__(
        self, what: str, *, figures: str = "", tried: Sequence[str] = (), advice: str = ""
    ) -> None:
        self.what = what
        self.figures = figures
        self.tried = tuple(tried)
        self.advice = advice
        lines = [what]
        if figures:
            lines.append(figures)
        if tried:
            lines.append(f"Tried: {', '.join(tried)}.")
        if advice:
            lines.append(f"Try: {advice}.")
        super().__init__("\n".join(lines))


class JobFailed(TightfitError):
    """The work failed for a reason other than memory."""


class BooksError(JobFailed):
    """A card's books do not add up."""


class Cancelled(TightfitError):
    """The job was cancelled through its flag."""

    exit_code = 130
