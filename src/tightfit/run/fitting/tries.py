"""What needs the weights of a module, done again with fewer of them where the card was full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tightfit.plan.streaming.residency import Mode
from tightfit.run.fitting.keeping import PARTS, Keeping
from tightfit.run.ladder.ladder import Ladder
from tightfit.run.ladder.once import once
from tightfit.run.ladder.rung import Attempt, Rung, Stage
from tightfit.units import MIB, format_bytes
from tightfit.watch.events import Oom
from tightfit.watch.teller import Teller


@dataclass(frozen=True)
class Tries:
    """Tries of one module, within its budget.

    Attributes:
        keeping: where its weights are.
        teller: is told of what ran out of memory.
        attempts: what was tried then.
        notes: what was found on the way.
    """

    keeping: Keeping
    teller: Teller
    attempts: list[Attempt]
    notes: list[str]

    def note(self, text: str) -> None:
        """Once, however often it is found."""
        if text not in self.notes:
            self.notes.append(text)

    def held(
        self,
        first: Callable[[], Any],
        again: Callable[[int, Mode], Any],
        stage: Stage,
        *,
        call: int,
    ) -> Any:
        """The value of `first`, else of `again` with fewer weights on the card; the same bits.

        `again` is told how many bytes of the room to leave out, and the mode. `call` is how many
        calls were made before. Raises `MemoryShortage` where the card is full even with everything
        streamed.
        """
        keeping, terms = self.keeping, self.keeping.terms
        if terms.fixed is not None:
            return first()
        values, failure = once(lambda: self._within(first), keeping.card, keeping.keepsakes)
        if values:
            return values[0]
        self.note(f"{stage.name} {call} ran out of memory and was done again: {failure}")
        self.teller.recorder.tell(Oom(stage.name, "as placed", failure or ""))
        room = keeping.supply_now().room

        def rungs() -> Iterator[Rung[Any]]:
            for part in PARTS:
                less = max(room // part, min(MIB, room // PARTS[1]))
                left_out = partial(again, less, terms.mode)
                yield Rung(f"{format_bytes(less)} left out", partial(self._within, left_out))
            yield Rung("everything streamed", partial(self._within, partial(again, 0, "none")))

        ladder = Ladder(
            keeping.card,
            terms.supply.budget,
            terms.supply.reserve,
            module=keeping.module,
            module_name=type(keeping.module).__name__,
            ask=False,
            recorder=self.teller.recorder,
            attempts=self.attempts,
            notes=self.notes,
        )
        return ladder.climb(stage, rungs())

    def _within(self, call: Callable[[], Any]) -> Any:
        """What `call` gives, while the allocator is bounded by a budget below the card.

        Not under cudaMallocAsync, which would have to have a pool made anew for each call.
        """
        card, supply = self.keeping.card, self.keeping.terms.supply
        if supply.budget >= supply.total or card.allocator == "async":
            return call()
        with card.cap(supply.budget):
            return call()
