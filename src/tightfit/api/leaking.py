"""A check around some work: nothing of it stays on the card."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from types import TracebackType

from tightfit.card import Card, open_card
from tightfit.errors import JobFailed, UsageError
from tightfit.units import format_bytes
from tightfit.watch.leaks.figures import three_lines
from tightfit.watch.leaks.find import Found, what_stayed
from tightfit.watch.leaks.heap import Limits
from tightfit.watch.leaks.leak import ADVICE, Leak
from tightfit.watch.leaks.moment import Moment, Scope, look

_FRAMES = 16
_MOST = 10
"""Leaks that the error tells; all of them are in `LeakCheck.leaks`."""


class LeakCheck:
    """What `leakcheck` gives.

    Attributes:
        card: the one that is looked at; None for all that this process uses.
        found: all that is known after the end; None before, and after an error.
        leaks: what stayed and is not allowed to, the largest first; likewise.
    """

    def __init__(
        self,
        card: str | Card | None,
        *,
        allow: str | Sequence[str],
        host: bool,
        sites: bool,
        report_only: bool,
        seconds: float,
    ) -> None:
        if seconds <= 0:
            raise UsageError(f"leakcheck: seconds={seconds} leaves no time to search.")
        self.card = open_card(card) if isinstance(card, str) else card
        self.found: Found | None = None
        self.leaks: tuple[Leak, ...] | None = None
        self._allowed = [allow] if isinstance(allow, str) else list(allow)
        self._scope = Scope(() if self.card is None else (self.card,), host=host)
        self._sites = sites
        self._report_only = report_only
        self._limits = Limits(seconds=seconds)
        self._before: Moment | None = None
        self._started = False

    def allow(self, *patterns: str) -> None:
        """What may stay from now on: a kind of hold, or a pattern for the chain."""
        self._allowed += patterns

    def begin(self) -> None:
        """The first moment: what is there now is no leak."""
        if self._sites and not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)
            self._started = True
        self._before = look(self._scope)

    def end(self) -> None:
        """The second moment. Raises `JobFailed` for what stayed, unless it only reports."""
        try:
            if self._before is not None:
                self.found = what_stayed(
                    self._before, limits=self._limits, traced=self._stop_tracing
                )
                allowed = tuple(self._allowed)
                self.leaks = tuple(leak for leak in self.found.leaks if not leak.matches(allowed))
        finally:
            self.drop()
        if self.leaks and not self._report_only:
            raise JobFailed(_sentences(self.leaks))

    def drop(self) -> None:
        """End without a look."""
        self._before = None
        self._stop_tracing()

    def lines(self) -> list[str]:
        """For people, after the end: what stayed, library workspaces, and each card's figures."""
        if self.found is None:
            return []
        figures = [
            f"{device}: {line}"
            for device, reading in self.found.readings.items()
            for line in three_lines(reading)
        ]
        return [*self.found.lines(), *figures]

    def __enter__(self) -> LeakCheck:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        else:
            self.drop()  # an error on its way holds all its frames, and is what has to be seen

    def _stop_tracing(self) -> None:
        if self._started:
            tracemalloc.stop()
            self._started = False


def leakcheck(
    card: str | Card | None = None,
    *,
    allow: str | Sequence[str] = (),
    host: bool = False,
    sites: bool = False,
    report_only: bool = False,
    seconds: float = 10.0,
) -> LeakCheck:
    """Check that nothing which is made inside stays on the card afterwards.

    ``with tightfit.leakcheck("cuda:0"): job()`` raises `JobFailed` with the bytes and the chain to
    who holds them: an exception, a module's attribute, a closure, a cycle that waits for the
    collector, and so on. What was there before, weights of modules that were there, and what
    libraries keep as scratch are no leaks. Where an error leaves the block, nothing is looked for.

    Args:
        card: which to look at; None for every CUDA device and virtual card that is in use.
        allow: kinds of hold (``cycle``) or patterns for chains (``module app → cache*``) that may
            stay.
        host: tensors on the host count too.
        sites: trace allocations of Python, so that each leak has the line that made it; slow.
        report_only: raise nothing; `LeakCheck.leaks` has what stayed.
        seconds: of this thread that the search for holders may take, where something stayed.

    Raises:
        UsageError: for a card that is none.
    """
    return LeakCheck(
        card,
        allow=allow,
        host=host,
        sites=sites,
        report_only=report_only,
        seconds=seconds,
    )


def _sentences(leaks: Sequence[Leak]) -> str:
    """What stayed, line by line, and what to do about each kind."""
    size = format_bytes(sum(leak.bytes for leak in leaks))
    what = "storage" if len(leaks) == 1 else "storages"
    lines = [f"{len(leaks)} {what} of {size} in all stayed that should be gone."]
    lines += [f"- {leak.line()}" for leak in leaks[:_MOST]]
    if len(leaks) > _MOST:
        lines.append(f"- and {len(leaks) - _MOST} more")
    lines += [f"{kind}: {ADVICE[kind]}." for kind in dict.fromkeys(leak.kind for leak in leaks)]
    return "\n".join(lines)
