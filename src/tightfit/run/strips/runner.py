"""Runs a program in strips, as it was laid out.

What a strip reads from the host is on its way while the strip before it is computed, and what was
made leaves while the next one is. The host never waits for the card before the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tightfit.card.lanes import Mark
from tightfit.plan.strips.layout import SLOTS, LaidStage, Layout
from tightfit.plan.strips.network import Kind
from tightfit.plan.strips.reach import share
from tightfit.plan.strips.spans import Strip
from tightfit.run.strips.keeping import Chunk, Lanes, Order, Slots
from tightfit.run.strips.part import Part, Span
from tightfit.run.strips.program import Program

_PICTURE = 4
HostView = Callable[[int, tuple[int, ...], torch.dtype], torch.Tensor]
"""Some of the host's memory: by offset in bytes, as a tensor of a shape and dtype."""


@dataclass
class _Coming:
    """Rows that are on their way from the host, in a slot."""

    slot: int
    rows: Span
    tensor: torch.Tensor
    ready: Mark


@dataclass
class _Wanted:
    """Rows that a strip will read from the host."""

    index: int
    value: int
    rows: Span


@dataclass
class Runner:
    """One run of `program`; it holds nothing after `run`.

    Attributes:
        program: what to do.
        layout: how.
        weights: by their paths, on the card.
        device: the card.
        lanes: its queues.
        host: memory for what is kept there.
        before_strip: called before each; may raise to stop.
        after_strip: called after each.
        packed: pictures are worked on channels last, as tensor cores read them.
    """

    program: Program
    layout: Layout
    weights: Mapping[str, torch.Tensor]
    device: torch.device
    lanes: Lanes
    host: HostView
    before_strip: Callable[[], None] = lambda: None
    after_strip: Callable[[], None] = lambda: None
    packed: bool = True
    _kept: dict[int, dict[int, Chunk]] = field(default_factory=dict)
    _there: dict[int, torch.Tensor] = field(default_factory=dict)
    _orders: dict[int, Order] = field(default_factory=dict)
    _wanted: deque[_Wanted] = field(default_factory=deque)
    _coming: dict[tuple[int, int], _Coming] = field(default_factory=dict)
    _channels_last: set[int] = field(default_factory=set)
    _read: Mark | None = None
    _result: torch.Tensor | None = None
    _memory: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def run(self, source: torch.Tensor) -> torch.Tensor:
        """The result for `source` (on the card or on the host), as a new tensor on the host."""
        try:
            with torch.no_grad():
                return self._run(source)
        finally:
            self._clear()

    def _run(self, source: torch.Tensor) -> torch.Tensor:
        network, layout = self.program.network, self.layout
        size = max(1, layout.card_arena + layout.passing)
        self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        self._bring(source)
        for laid in self.layout.stages:
            if laid.stage.in_strips:
                self._in_strips(laid)
            else:
                self._at_once(laid)
            self._forget(laid.stage.number)
        assert self._result is not None
        self.lanes.down.drain()
        if self.layout.result_on_card:
            return self._result.to("cpu", copy=self._result.device.type == "cpu")
        order = self._order(network.result)
        return self._result.permute(order.back).contiguous()

    def _clear(self) -> None:
        """Whatever happened: nothing is under way, and nothing is held."""
        self.lanes.up.drain()
        self.lanes.down.drain()
        for held in (self._kept, self._there, self._wanted, self._coming, self._channels_last):
            held.clear()
        self._result = None
        self._memory = torch.empty(0, dtype=torch.uint8)

    # --- values ---

    def _order(self, value: int) -> Order:
        if value not in self._orders:
            program = self.program
            self._orders[value] = Order.of(
                program.shapes[value], program.axes[value], program.dtypes[value]
            )
        return self._orders[value]

    def _bring(self, source: torch.Tensor) -> None:
        given = self.program.network.given
        if self.packed and source.dim() == _PICTURE and source.shape[1] > 1:
            self._channels_last.add(given)
        rows = (0, self.program.network.extents[given].rows)
        if (given, 0) not in self.layout.offsets:
            self._kept[given] = {0: Chunk(rows, source.to(self.device))}
            return
        order = self._order(given)
        place = self.host(self.layout.offsets[given, 0], order.lying(rows[1]), order.dtype)
        place.copy_(source.permute(order.axes))
        self._kept[given] = {0: Chunk(rows, host=place)}

    def _held(self, value: int) -> torch.Tensor:
        values = self.program.graph.values
        path = values[value].weight if value < len(values) else None
        return self._there[value] if path is None else self.weights[path]

    def _parts_of(self, value: int, rows: Span) -> Iterator[tuple[Chunk, Span]]:
        for chunk in self._kept[value].values():
            begin, end = max(rows[0], chunk.rows[0]), min(rows[1], chunk.rows[1])
            if begin < end:
                yield chunk, (begin, end)

    def _gathered(self, value: int) -> torch.Tensor:
        """All rows of a value on the card."""
        order = self._order(value)
        rows = (0, order.shape[order.axis])
        parts = list(self._parts_of(value, rows))
        if all(chunk.tensor is not None for chunk, _ in parts):
            return self._joined(value, parts)
        whole = torch.empty(order.shape, dtype=order.dtype, device=self.device)
        for chunk, (begin, end) in parts:
            place = whole.narrow(order.axis, begin, end - begin)
            if chunk.tensor is not None:
                place.copy_(chunk.tensor)
                continue
            assert chunk.host is not None
            passing = torch.empty(order.lying(end - begin), dtype=order.dtype, device=self.device)
            self.lanes.up.wait(self.lanes.compute.mark())
            self._fetch(chunk, (begin, end), passing)
            self.lanes.compute.wait(self.lanes.up.mark())
            place.copy_(passing.permute(order.back))
        return whole

    def _joined(self, value: int, parts: Sequence[tuple[Chunk, Span]]) -> torch.Tensor:
        """Rows that all lie on the card, as a view where they lie in one piece."""
        axis = self._order(value).axis
        pieces = []
        for chunk, (begin, end) in parts:
            assert chunk.tensor is not None
            pieces.append(_narrowed(chunk.tensor, axis, begin - chunk.rows[0], end - begin))
        packed = value not in self._channels_last or pieces[0].stride(1) == 1
        if len(pieces) == 1 and packed:
            return pieces[0]
        first = parts[0][1][0]
        joined = self._empty(value, parts[-1][1][1] - first)
        for piece, (_, (begin, end)) in zip(pieces, parts, strict=True):
            joined.narrow(axis, begin - first, end - begin).copy_(piece)
        return joined

    def _empty(self, value: int, rows: int) -> torch.Tensor:
        """A new tensor for so many rows, as they are worked on."""
        order = self._order(value)
        shape = list(order.shape)
        shape[order.axis] = rows
        packed = value in self._channels_last
        form = torch.channels_last if packed else torch.contiguous_format
        return torch.empty(shape, dtype=order.dtype, device=self.device, memory_format=form)

    def _fetch(self, chunk: Chunk, rows: Span, target: torch.Tensor) -> None:
        """Queue a copy of rows of a chunk on the host."""
        assert chunk.host is not None
        if chunk.ready is not None:
            self.lanes.up.wait(chunk.ready)
        first = rows[0] - chunk.rows[0]
        self.lanes.up.copy(target, chunk.host[first : first + rows[1] - rows[0]])

    # --- stages ---

    def _at_once(self, laid: LaidStage) -> None:
        """What is read is put together for its first reader, and let go after its last."""
        stage = laid.stage
        drops = _last_uses(self.program.parts, stage.steps)
        gathers = frozenset(stage.gathers)
        gathered: dict[int, torch.Tensor] = {}
        for at in stage.steps:
            part = self.program.parts[at]
            for value in (need.value for need in part.needs):
                if value in gathers and value not in gathered:
                    gathered[value] = self._gathered(value)
            made = part.run(
                [gathered[n.value] if n.value in gathered else self._held(n.value)
                 for n in part.needs], (0, 0), ()
            )  # fmt: skip
            self._there.update(zip(part.makes, made, strict=True))
            del made
            for value in drops.get(at, ()):
                gathered.pop(value, None)
                if self.layout.last.get(value, stage.number) <= stage.number:
                    self._there.pop(value, None)
        self._drop(self.layout.dead.get((stage.number, 0), ()))

    def _in_strips(self, laid: LaidStage) -> None:
        stage = laid.stage
        gathered = {value: self._gathered(value) for value in stage.gathers}
        passing = self._memory[self.layout.card_arena :]
        up = Slots(passing, laid.load, SLOTS)
        down = Slots(passing[SLOTS * laid.load :], laid.store, SLOTS)
        if up:
            self.lanes.up.wait(self.lanes.compute.mark())  # others had these bytes before
        self._wanted.extend(self._from_host(laid))
        sums: dict[int, list[Sequence[torch.Tensor]]] = {}
        drops = _last_uses(self.program.parts, stage.steps)
        for value in stage.keeps:
            self._kept[value] = {}
        for index, strip in enumerate(laid.strips):
            self.before_strip()
            self._strip(laid, index, strip, gathered, sums, drops, up, down)
            self._drop(self.layout.dead.get((stage.number, index), ()))
            self.after_strip()
        for at, strips in sums.items():
            part = self.program.parts[at]
            assert part.finish is not None
            self._there[part.makes[0]] = part.finish(strips)
        up.leave(self.lanes.compute)
        down.leave(self.lanes.compute)

    def _strip(
        self,
        laid: LaidStage,
        index: int,
        strip: Strip,
        gathered: dict[int, torch.Tensor],
        sums: dict[int, list[Sequence[torch.Tensor]]],
        drops: dict[int, list[int]],
        up: Slots,
        down: Slots,
    ) -> None:
        stage, spans = laid.stage, strip.spans
        extents = self.program.network.extents
        here: dict[int, torch.Tensor] = {}
        loads = frozenset(stage.loads)
        keeps = frozenset(stage.keeps)
        for at in stage.steps:
            part = self.program.parts[at]
            rows = strip.own[part.needs[0].value] if part.kind is Kind.SUMS else _rows(part, spans)
            if rows is None:
                continue
            given: list[torch.Tensor] = []
            seen: list[Span] = []
            for need in part.needs:
                value = need.value
                if value in loads and value not in here:
                    here[value] = self._loaded(index, value, spans[value], up)
                tensor, first = here.get(value), 0
                if tensor is None:
                    tensor = gathered[value] if value in gathered else self._held(value)
                else:
                    first = spans[value][0]
                if need.axis is not None:
                    assert need.reach is not None
                    total = extents[value].rows or tensor.shape[need.axis]
                    begin, end = need.reach.needs(*rows, total)
                    tensor = _narrowed(tensor, need.axis, begin - first, end - begin)
                    seen.append((begin, end))
                else:
                    seen.append((0, 0))
                given.append(tensor)
            made = part.run(given, rows, seen)
            del given, tensor
            if part.kind is Kind.SUMS:
                sums.setdefault(at, []).append(made)
            else:
                for value, one in zip(part.makes, made, strict=True):
                    here[value] = one
                    if value in keeps:
                        begin, end = strip.own[value]
                        axis = self.program.axes[value]
                        mine = _narrowed(one, axis, begin - spans[value][0], end - begin)
                        self._keep(value, index, (begin, end), mine, down)
            del made
            for value in drops.get(at, ()):
                here.pop(value, None)

    def _loaded(self, index: int, value: int, rows: Span, up: Slots) -> torch.Tensor:
        """Rows of a kept value on the card."""
        self._send(up)
        coming = self._coming.pop((index, value), None)
        parts = list(self._parts_of(value, rows))
        if coming is None:
            return self._joined(value, parts)
        order = self._order(value)
        strip = self._empty(value, rows[1] - rows[0])
        for chunk, (begin, end) in parts:
            if chunk.tensor is not None:
                piece = _narrowed(chunk.tensor, order.axis, begin - chunk.rows[0], end - begin)
                strip.narrow(order.axis, begin - rows[0], end - begin).copy_(piece)
        begin, end = coming.rows
        self.lanes.compute.wait(coming.ready)
        target = strip.narrow(order.axis, begin - rows[0], end - begin)
        target.copy_(coming.tensor.permute(order.back))
        up.free[coming.slot] = self.lanes.compute.mark()
        self._send(up)
        return strip

    def _from_host(self, laid: LaidStage) -> Iterator[_Wanted]:
        """What the strips will read from the host, in the order in which they do."""
        extents, layout = self.program.network.extents, self.layout
        for index, strip in enumerate(laid.strips):
            for value in laid.stage.loads:
                rows, count = strip.spans.get(value), layout.counts[value]
                stay = layout.on_card[value]
                if rows is None or stay >= count:
                    continue
                first = share(extents[value].rows, stay, count)[0]
                begin = max(rows[0], first)
                if begin < rows[1]:
                    yield _Wanted(index, value, (begin, rows[1]))

    def _send(self, up: Slots) -> None:
        """Queue copies of what comes next, as far as there are slots for it."""
        while self._wanted and len(self._coming) < len(up):
            wanted = self._wanted.popleft()
            order, slot = self._order(wanted.value), up.turn()
            free = up.free[slot]
            if free is not None:
                self.lanes.up.wait(free)
            begin, end = wanted.rows
            place = up.view(slot, order, end - begin)
            for chunk, rows in self._parts_of(wanted.value, wanted.rows):
                self._fetch(chunk, rows, place[rows[0] - begin : rows[1] - begin])
            mark = self.lanes.up.mark()
            self._coming[wanted.index, wanted.value] = _Coming(slot, wanted.rows, place, mark)

    def _keep(self, value: int, index: int, rows: Span, tensor: torch.Tensor, down: Slots) -> None:
        """Keep a strip of a value where the layout says."""
        order = self._order(value)
        if tensor.dim() == _PICTURE and tensor.shape[1] > 1 and tensor.stride(1) == 1:
            self._channels_last.add(value)
        if value == self.program.network.result:
            self._keep_result(rows, tensor, order, down)
            return
        offset = self.layout.offsets[value, index]
        if index < self.layout.on_card[value]:
            size = order.bytes(rows[1] - rows[0])
            flat = self._memory[offset : offset + size].view(order.dtype)
            self._kept[value][index] = Chunk(rows, _copied(tensor, flat))
            return
        place = self.host(offset, order.lying(rows[1] - rows[0]), order.dtype)
        ready = self._leave(tensor, order, place, down)
        self._kept[value][index] = Chunk(rows, host=place, ready=ready)

    def _keep_result(self, rows: Span, tensor: torch.Tensor, order: Order, down: Slots) -> None:
        if self._result is None and self.layout.result_on_card:
            self._result = torch.empty(order.shape, dtype=order.dtype, device=self.device)
        if self._result is None:
            self._result = torch.empty(order.lying(order.shape[order.axis]), dtype=order.dtype)
        if self.layout.result_on_card:
            self._result.narrow(order.axis, rows[0], rows[1] - rows[0]).copy_(tensor)
            return
        self._leave(tensor, order, self._result[rows[0] : rows[1]], down)

    def _leave(self, tensor: torch.Tensor, order: Order, place: torch.Tensor, down: Slots) -> Mark:
        """Queue a copy to the host."""
        lanes, slot = self.lanes, down.turn()
        free = down.free[slot]
        if free is not None:
            lanes.compute.wait(free)
        leaving = down.view(slot, order, tensor.shape[order.axis])
        leaving.copy_(tensor.permute(order.axes))
        lanes.down.wait(lanes.compute.mark())
        if self._read is not None:
            lanes.down.wait(self._read)
        lanes.down.copy_back(place, leaving)
        mark = down.free[slot] = lanes.down.mark()
        return mark

    def _drop(self, gone: Sequence[tuple[int, int]]) -> None:
        """Let go what nobody reads any more; its place on the host is free once it was read."""
        on_host = False
        for value, index in gone:
            chunk = self._kept[value].pop(index)
            on_host = on_host or chunk.host is not None
        if on_host:
            self._read = self.lanes.up.mark()

    def _forget(self, number: int) -> None:
        last = self.layout.last
        for value in [value for value in self._there if last.get(value, number) <= number]:
            del self._there[value]


def _rows(part: Part, spans: dict[int, Span]) -> Span | None:
    for value in part.makes:
        if value in spans:
            return spans[value]
    return None


def _narrowed(tensor: torch.Tensor, axis: int, begin: int, length: int) -> torch.Tensor:
    return tensor if length == tensor.shape[axis] else tensor.narrow(axis, begin, length)


def _copied(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` in `flat`, its axes lying there in the order in which they lie now."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    place = flat.view([tensor.shape[axis] for axis in order])
    place = place.permute([order.index(axis) for axis in range(tensor.dim())])
    place.copy_(tensor)
    return place


def _last_uses(parts: Sequence[Part], steps: Sequence[int]) -> dict[int, list[int]]:
    """Step → values that nobody in this stage reads after it."""
    last: dict[int, int] = {}
    for at in steps:
        for value in parts[at].makes:
            last[value] = at
        for need in parts[at].needs:
            last[need.value] = at
    drops: dict[int, list[int]] = {}
    for value, at in last.items():
        drops.setdefault(at, []).append(value)
    return drops
