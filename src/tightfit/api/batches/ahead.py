"""The next input of a batch is read while the present one is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType

from tightfit.api.batches.items import Item
from tightfit.api.reading import Reading
from tightfit.api.sources import Selection
from tightfit.run.vae import Traits


class Ahead:
    """A context manager; behind it nobody reads any more.

    One input at a time is read: the next one when the present one is, up to `reading.AHEAD` bytes
    until its turn comes. What goes wrong with it is told then. One whose output is there already
    is not read ahead: it will be kept.
    """

    def __init__(self, items: Sequence[Item], selection: Selection, traits: Traits) -> None:
        self._following = dict(pairwise(items))
        self._selection, self._traits = selection, traits
        self._readings: dict[Item, Reading] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close({})

    def of(self, item: Item) -> Reading:
        """The reading of `item`, whose turn has come; that of the next one is begun."""
        present = self._readings.get(item) or Reading(item.source, self._selection)
        self._close({item: present})
        following = self._following.get(item)
        if following is not None and not following.out.exists():
            self._readings[following] = reading = Reading(
                following.source, self._selection, ahead=True, after=present.over
            )
            reading.whom(self._traits)
        return present

    def _close(self, kept: dict[Item, Reading]) -> None:
        """All but those."""
        before, self._readings = self._readings, kept
        for item, reading in before.items():
            if item not in kept:
                reading.close()
