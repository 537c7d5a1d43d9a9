"""What was learnt of the calls of a module: what each kind needs, and what they are like."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from torch import nn

from tightfit.allocators import ALIGNMENT
from tightfit.card import Card
from tightfit.plan.slack import FRAGMENTS
from tightfit.run.fitting.need import Call, Need, need_and_order, need_of
from tightfit.run.fitting.tuners import Tuners
from tightfit.weigh.order import Order

_ALIKE = 3
"""Calls that differ in integers alone and need the same, after which others are taken to."""


@dataclass(eq=False, repr=False)
class Lessons:
    """Calls of one kind have the same shapes, and the same adapters are in use in them.

    Attributes:
        module, card: whose calls, and where.
        note: is told what could not be learnt.
        needs: by the key of a kind.
        tuners: the layers of the module that have adapters.
        like: the last call that can be kept without keeping what it was given: without values,
            and how many bytes would have to be brought for it.
    """

    module: nn.Module
    card: Card
    note: Callable[[str], None]
    needs: dict[Hashable, Need] = field(default_factory=dict)
    like: tuple[Call, int] | None = None
    _like_key: Hashable = None
    _alike: dict[Hashable, list[Hashable]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Of the module as it is now."""
        self.tuners = Tuners(self.module)

    def forget(self) -> None:
        """The module is another one now; calls may be as they were."""
        self.needs.clear()
        self._alike.clear()
        self.tuners = Tuners(self.module)

    def remember(self, call: Call) -> None:
        """That calls are like this one."""
        key = call.key()
        if key != self._like_key and call.is_plain:
            self.like = call.without_values(), call.arriving()
            self._like_key = key

    def key(self, call: Call) -> Hashable | None:
        """Under which the need of `call` is known; None where it is not.

        An integer may be a size, so each is looked at: until a few made no difference, as times
        of steps do.
        """
        keys = self._key(call), self._key(call, numbers=False)
        return next((key for key in keys if key in self.needs), None)

    def of(self, call: Call | None) -> tuple[Need, Order | None]:
        """What `call` needs, and its order; None is one like the last, if there was one."""
        if call is not None:
            self.remember(call)
            key, order = self.learn(call, order=True)
            return self.needs[key], order
        if self.like is None:
            return Need(), None
        need, order = need_and_order(self.module, self.like[0], self.card)
        self.needs[self.tuners.active, self._like_key] = need
        self._say(need)
        return need, order

    def learn(self, call: Call, *, order: bool) -> tuple[Hashable, Order | None]:
        """The key of a call of a new kind, and its order if that is asked for."""
        key, alike = self._key(call), self._key(call, numbers=False)
        found = None
        if order:
            self.needs[key], found = need_and_order(self.module, call, self.card)
        else:
            self.needs[key] = need_of(self.module, call, self.card)
        self._say(self.needs[key])
        if alike != key:
            seen = self._alike.setdefault(alike, [])
            seen.append(key)
            needs = [self.needs[each] for each in seen]
            if len(needs) >= _ALIKE and len({each.problem or each.dry for each in needs}) == 1:
                self.needs[alike] = max(needs, key=lambda each: (each.allocated or 0, each.slack))
        return key, found

    def saw(self, key: Hashable, taken: int | None) -> None:
        """A call of that kind held, and took so many bytes on the card at most."""
        need, allocated = self.needs[key], self.needs[key].allocated
        if taken is not None:
            allocated = max(allocated or 0, taken)
        self.needs[key] = replace(
            need, dry=need.dry or allocated, allocated=allocated, runs=need.runs + 1
        )

    def lacked(self, key: Hashable | None) -> None:
        """A call of that kind should have had more slack."""
        if key is None or key not in self.needs:
            return
        grain = self.card.grain if self.card.allocator in FRAGMENTS else ALIGNMENT
        self.needs[key] = self.needs[key].lacking(grain)
        self.note(
            "the allocator had to give its cache back, or refused a library its scratch: the "
            "next call of these shapes has more room"
        )

    def _key(self, call: Call, *, numbers: bool = True) -> Hashable:
        return self.tuners.active, call.key(numbers=numbers)

    def _say(self, need: Need) -> None:
        if need.problem is not None:
            self.note(
                "what a call needs could not be told beforehand, so a quarter of the room is kept "
                f"until one was seen: {need.problem}"
            )
