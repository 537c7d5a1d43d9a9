"""What each call of a streamed network did, told to a recorder now and then."""

from __future__ import annotations

from collections import deque

from tightfit.place.streaming.streamed import Streaming
from tightfit.place.streaming.trace import StepTrace
from tightfit.place.streaming.tracing import KEPT
from tightfit.watch.teller import Teller


class ToldSteps:
    """To look at a step is to wait for the card, so it is done once in as many as are kept."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._starts: deque[float] = deque(maxlen=KEPT)
        self._last: StepTrace | None = None
        self._waiting = 0

    def ended(self, start: float, session: Streaming | None) -> None:
        """A call that began at `start`, by the recorder, is over on the host."""
        if not self._teller.fine:
            self._forget()
            return
        self._starts.append(start)
        self._waiting += 1
        if self._waiting >= KEPT:
            self.tell(session)

    def tell(self, session: Streaming | None) -> None:
        """Tell what was not told yet; the host waits for the card where there is something."""
        if not self._waiting or session is None or not self._teller.fine:
            self._forget()
            return
        waiting, self._waiting = self._waiting, 0
        steps = session.steps
        if not steps:  # it was opened while nobody wanted them
            return
        before = max(0, len(steps) - waiting)  # of calls that nobody asked about
        known = next((at for at, step in enumerate(steps, 1) if step is self._last), before)
        starts = [*[None] * len(steps), *self._starts][-len(steps) :]
        for start, step in zip(starts[known:], steps[known:], strict=True):
            self._teller.stepped(start, step.as_dict())
        self._last = steps[-1]

    def _forget(self) -> None:
        """What was done so far is nobody's: another recorder has another clock."""
        self._waiting = 0
        self._starts.clear()
        self._last = None
