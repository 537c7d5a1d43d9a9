"""Where the groups of a module are, and how they come to be somewhere else between its calls."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch

from tightfit.card.base import Card
from tightfit.errors import UsageError
from tightfit.place.streaming.berths import slot_of
from tightfit.place.streaming.binding import Binding
from tightfit.place.streaming.brought import Brought
from tightfit.place.streaming.groups import Group, Scan
from tightfit.place.streaming.inventory import Inventory
from tightfit.place.streaming.placement import Placement, plain_mode
from tightfit.place.streaming.store import key_of
from tightfit.place.streaming.watching import Hold, Replanned, Watch
from tightfit.plan.streaming.residency import Residency
from tightfit.watch.teller import Teller
from tightfit.weigh.blocks import Weights
from tightfit.weigh.tensors import Held

_RESTS = "it is at rest: call the whole of what is fitted, or change to a residency that fits."
_FAILED = (
    "its weights are on their way, or a change of them failed: change to a residency that fits, "
    "or unfit it."
)


class Arrangement:
    """The groups of a module as a residency says, and then as another one.

    Everything that goes is drained and freed before anything that comes is allocated.

    Attributes:
        residency: what is done now, which a watch may have changed from what was asked.
        groups: as they move now.
        replanned: what a watch changed, in order.
        taken: bytes of the card that all this has, by the allocator's count; 0 where it has none.
        rests: nothing is on the card since that was asked for, tables included.
    """

    def __init__(
        self,
        placement: Placement,
        card: Card,
        scan: Scan,
        weights: Weights,
        *,
        compares: bool,
        teller: Teller | None = None,
    ) -> None:
        """Nothing is moved yet. `teller` is told of each block as it gets its place."""
        self._teller = teller
        self._placement = placement
        self._card = card
        self._scan = scan
        self._weights = weights
        self._compares = compares
        self._binding: Binding | None = None
        self._inventory: Inventory | None = None
        self._is_whole = False
        self._is_torn = False
        self.residency: Residency | None = None
        self.taken = 0
        self.rests = False
        self._outside = 0
        self.groups: tuple[Group, ...] = ()
        self.replanned: tuple[Replanned, ...] = ()

    def begin(
        self,
        residency: Residency,
        groups: tuple[Group, ...],
        binding: Binding,
        *,
        room: int | None,
    ) -> None:
        """The first time. What it raises leaves everything to the stack of the placement."""
        self._binding = binding
        self._outside = self._held()
        self._arrange(residency, groups, room)

    def end(self) -> None:
        """Nothing can be changed any more."""
        self._binding = self._inventory = None

    def change(self, residency: Residency, *, room: int | None) -> None:
        """Another time, in a turn.

        Where that fails, all is as it was before; if not even that fits any more, or after an
        interrupt, nothing is on the card, and calls are refused until another change succeeds.
        """
        if self._binding is None:
            raise UsageError(f"`{self._weights.name}` is not streamed any more.")
        with plain_mode():
            self._placement.hide_own()
            groups = self._groups(residency)
            before = None if self.rests else self.residency
            if self._is_whole:
                self.check()
            self._card.sync()
            self._outside = self._held() - self.taken
            try:
                self._arrange(residency, groups, room)
            except BaseException as error:
                _forget_frames(error)
                self._undo(before if isinstance(error, Exception) else None)
                raise

    def rest(self) -> int:
        """Let go all that is on the card, in a turn; how many bytes, by the allocator's count.

        What is interrupted is tried once more; if that fails too, it is done before a change.
        """
        if self._binding is None:
            raise UsageError(f"`{self._weights.name}` is not streamed any more.")
        with plain_mode():
            self._placement.hide_own()
            if self._is_whole and not self.differs:
                self.check()
            before = self._held()
            self._card.sync()
            self.rests = True
            try:
                self._clear()
            except BaseException as error:
                _forget_frames(error)
                self._clear()
                raise
            self._placement.show_own()
            return max(0, before - self._held())

    @property
    def differs(self) -> bool:
        """Whether the module has other parameters than those that are arranged here."""
        return self._inventory is not None and self._inventory.differs

    def newcomers(self) -> list[Held]:
        """The parameters that came to the module."""
        return [] if self._inventory is None else self._inventory.newcomers()

    def check(self) -> None:
        """Raise `UsageError` while weights are not where they should be, or not what they were."""
        if not self._is_whole:
            why = _RESTS if self.rests else _FAILED
            raise UsageError(f"`{self._weights.name}` cannot be called now: {why}")
        self._placement.hide_own()
        if self._inventory is not None:
            self._inventory.check()
        self._placement.tables.look()
        self._placement.store.forget_unpacked()

    def _groups(self, residency: Residency) -> tuple[Group, ...]:
        return groups_for(residency, self._scan, self._weights, self._placement.like)

    def _arrange(self, residency: Residency, groups: tuple[Group, ...], room: int | None) -> None:
        placement = self._placement
        if self._is_torn:
            self._clear()
        self._is_whole, self._is_torn = False, True
        if self.rests:
            before = self._held()
            placement.tables.bring_again()
            self._outside += self._held() - before
        self._free(residency, groups)
        residency, groups = self._bring(residency, groups, room)
        rings = _by_ring(groups)
        for number, passing in rings.items():
            slots = _slots(number, residency)
            if not placement.fits_ring(number, passing, slots=slots):
                placement.open_ring(number, passing, slots=slots, compares=self._compares)
                self._tell_ring(number, passing, residency)
        assert self._binding is not None
        brought: list[Brought] = [placement.passing(group) for group in groups if group.passes]
        if placement.converter is not None:
            brought += placement.converter.conversions
        self._binding.rebind(brought)
        placement.unpin_idle()
        self.residency, self.groups = residency, groups
        self.taken = self._held() - self._outside
        self._inventory = self._placement.inventory(self._scan.helds)
        self._is_whole, self._is_torn, self.rests = True, False, False
        for ring in placement.rings:
            ring.ahead()

    def _held(self) -> int:
        """In the allocator's blocks, which may be larger than was asked for."""
        return self._card.read().allocated or 0

    def _free(self, residency: Residency, groups: Sequence[Group]) -> None:
        """Let go what is not wanted any more, and give its memory back; pack what streams."""
        placement = self._placement
        keep = [
            number
            for number, passing in _by_ring(groups).items()
            if placement.fits_ring(number, passing, slots=_slots(number, residency))
        ]
        scratch = max((group.layout.bytes for group in groups if group.packed), default=0)
        if placement.scratch_bytes not in (0, scratch):
            keep = []  # they unpack into it
        freed = placement.close_rings(keep=keep)
        self._tell_gone(groups)
        freed += placement.drop_all_but(group for group in groups if group.stays)
        if placement.scratch_bytes not in (0, scratch):
            freed += placement.close_scratch()
        if placement.conversion_bytes not in (0, _converted(residency, groups)):
            if not freed:
                self._card.sync()
            freed += placement.close_conversion()
        if freed:
            self._card.trim()
        passing = [group for group in groups if not group.stays]
        placement.store.choose(group for group in passing if not group.packed)
        coming = [group for group in groups if group.stays and not placement.is_resident(group)]
        waiting = [group for group in coming if group.packed]
        ready = placement.ready(coming)
        placement.store.choose(ready, streams=False)
        placement.store.take_all([*passing, *waiting, *ready])
        for group in passing:
            placement.hide(group)

    def _bring(
        self, residency: Residency, groups: tuple[Group, ...], room: int | None
    ) -> tuple[Residency, tuple[Group, ...]]:
        """Put on the card what stays; within `room`, as much of it as fits beside the rings."""
        placement = self._placement
        placement.open_scratch(groups)
        placement.open_conversion(_converted(residency, groups))
        if room is None:
            for group in groups:
                if group.stays:
                    self._stay(group)
            return residency, groups
        self._card.trim()  # what calls left in the allocator's cache is nobody's drift
        watch, hold = Watch(self._card, room), Hold(self._card)
        try:
            hold.fit(self._ring_sizes(residency, groups))
            while waiting := [g for g in groups if g.stays and not placement.is_resident(g)]:
                sizes = {piece.name: piece for piece in residency.pieces}
                pieces = [sizes[group.name] for group in waiting if group.name in sizes]
                if not watch.has_room_for(sum(piece.bytes for piece in pieces)):
                    found = watch.replan(residency, pieces)
                    if found is not None:
                        residency, told = found
                        self.replanned += (told,)
                        groups = self._groups(residency)
                        self._free(residency, groups)
                        hold.fit(self._ring_sizes(residency, groups))
                        continue
                self._stay(waiting[0])
                watch.placed(placement.taken_by(waiting[0]))
            watch.look()
        finally:
            hold.release()
        return residency, groups

    def _stay(self, group: Group) -> None:
        if self._placement.is_resident(group):
            return
        self._placement.stay(group)
        if self._teller is not None:
            size = self._placement.taken_by(group)
            self._teller.placed(group.name, size, "packed" if group.packed else "resident")

    def _tell_ring(self, number: int, passing: Sequence[Group], residency: Residency) -> None:
        if self._teller is None:
            return
        ring = self._placement.ring(number)
        self._teller.ring(ring.bytes, min(_slots(number, residency), len(passing)))
        for group in passing:
            self._teller.placed(group.name, group.layout.bytes, "streamed")

    def _tell_gone(self, groups: Iterable[Group]) -> None:
        """Before it goes, what was resident and will not be."""
        if self._teller is None:
            return
        stay = {key_of(group) for group in groups if group.stays}
        for group in self.groups:
            if group.stays and key_of(group) not in stay and self._placement.is_resident(group):
                self._teller.evicted(group.name, self._placement.taken_by(group))

    def _ring_sizes(self, residency: Residency, groups: Iterable[Group]) -> list[int]:
        """Of the rings that are still to be opened."""
        sizes: list[int] = []
        for number, passing in _by_ring(groups).items():
            slots = _slots(number, residency)
            if not self._placement.fits_ring(number, passing, slots=slots):
                store = self._placement.store
                slot = slot_of([store.take(group).bytes for group in passing])
                sizes.append(slot * min(slots, len(passing)))
        return sizes

    def _undo(self, before: Residency | None) -> None:
        """After a change that failed: as it was `before`, or else nothing on the card."""
        if before is not None:
            self._is_torn = False  # the books are right after an error, if not after an interrupt
            try:
                self._arrange(before, self._groups(before), None)
                return
            except Exception as error:
                _forget_frames(error)
        self._clear()

    def _clear(self) -> None:
        """Nothing is on the card, tables apart unless it rests; every call is refused."""
        assert self._binding is not None
        self._is_whole, self._is_torn = False, True
        self._placement.close_rings(keep=())
        self._placement.drop_all_but(())
        self._placement.close_scratch()
        self._placement.close_conversion()
        for group in self.groups:
            self._placement.hide(group)
        anchors = {anchor for group in self.groups for anchor in group.anchors}
        self._binding.rebind((), watched=anchors)
        if self.rests:
            self._placement.rest_tables()
        self._card.trim()
        self.taken = 0
        self._is_torn = False


def groups_for(
    residency: Residency,
    scan: Scan,
    weights: Weights,
    masters: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[Group, ...]:
    """The groups of a residency. Raises `UsageError` for one that cannot be done."""
    if residency.ring.level == "rows":
        raise UsageError("the plan streams slices of rows, which cannot be done yet.")
    return scan.groups(residency, weights, masters)


def _converted(residency: Residency, groups: Iterable[Group]) -> int:
    """Bytes that weights are converted into; where some are packed, they are unpacked into them."""
    return 0 if any(group.packed for group in groups) else residency.conversion


def _by_ring(groups: Iterable[Group]) -> dict[int, list[Group]]:
    """Those that stream, by the number of their ring."""
    rings: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        if not group.stays:
            rings[group.ring].append(group)
    return dict(sorted(rings.items()))


def _slots(number: int, residency: Residency) -> int:
    """The planned ring has many, those beside it one each."""
    return 1 if number else residency.ring.slots


def _forget_frames(error: BaseException) -> None:
    """What the frames that raised it held is free, however long the error is kept."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__
