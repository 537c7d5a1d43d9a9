"""Running a VAE tile by tile; results are gathered and blended on the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import torch

from tightfit.plan.tiles import Edge, Scale, Span, Track, blend_weights, cut
from tightfit.plan.tilesize import Tile
from tightfit.run.delivery import Delivery, hand_over, parts_of
from tightfit.run.intake import Fill, is_whole

Call = Callable[[torch.Tensor], torch.Tensor]
Onward = Callable[[torch.Tensor, bool], torch.Tensor]
"""Goes on where the last call ended; True begins anew."""
Wider = Callable[[], AbstractContextManager[torch.dtype]]
"""While inside, the network computes in a dtype with more room for large values."""
Redone = Callable[[tuple[Span, ...], torch.dtype, bool], None]
"""Told where something was done again, in positions of the result, in what, and if it helped."""


@dataclass(frozen=True)
class Grid:
    """Where the tiles of one direction read and write, axis by axis.

    Attributes:
        reads: per axis, the span of the source that each tile reads.
        writes: per axis, the span of the result that each tile writes.
        weights: per axis and tile, the blend weights of the units that it writes.
        sizes: of the result, per axis.
        onward: the tiles of the first axis, time, follow each other without an overlap, for a
            network that goes on where it ended.
    """

    reads: tuple[tuple[Span, ...], ...]
    writes: tuple[tuple[Span, ...], ...]
    weights: tuple[list[list[float]], ...]
    sizes: tuple[int, ...]
    onward: bool = False

    @property
    def count(self) -> int:
        """Number of tiles."""
        total = 1
        for spans in self.reads:
            total *= len(spans)
        return total

    @property
    def places(self) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Tiles by their places along each axis: all that have to follow each other, together."""
        ranges = [range(len(spans)) for spans in self.reads]
        if not self.onward:
            yield from (((place),) for place in itertools.product(*ranges))
            return
        time, *space = ranges
        for place in itertools.product(*space):
            yield tuple((at, *place) for at in time)


def lay_grid(
    tracks: Sequence[Track],
    tile: Tile,
    edges: Sequence[Edge | None],
    *,
    time: bool = False,
    onward: bool = False,
) -> Grid:
    """Cut every axis and weigh the overlaps on the side of the result.

    The first axis is `time` for clips: there the later tile takes over once it is right, and the
    frames before are its warm-up, since frames of two tiles blended show ghosts. With `onward`
    nothing overlaps in time.
    """
    reads, writes, weights, sizes = [], [], [], []
    for at, (track, size, overlap, edge) in enumerate(
        zip(tracks, tile.sizes, tile.overlaps, edges, strict=True)
    ):
        whole = Span(0, track.length)
        if onward and at == 0:
            units = _in_turn(track.length, size)
            read, write = (
                [_onward(scale, span) for span in units] for scale in (track.read, track.write)
            )
        else:
            units = cut(track.length, size, overlap) if size < track.length else (whole,)
            read, write = (
                [scale.of(span) for span in units] for scale in (track.read, track.write)
            )
        reads.append(tuple(read))
        writes.append(tuple(write))
        sizes.append(len(track.write.of(whole)))
        ghosts = at == 0 and time and edge is not None and edge.bounded
        weights.append(blend_weights(write, sizes[-1], edge=edge, blend=not ghosts))
    return Grid(tuple(reads), tuple(writes), tuple(weights), tuple(sizes), onward)


def _in_turn(length: int, size: int) -> tuple[Span, ...]:
    """Spans of `size` units one after the other; the last may be shorter."""
    return tuple(Span(at, min(at + size, length)) for at in range(0, length, size))


def _onward(scale: Scale, span: Span) -> Span:
    """The positions that come with these units, where those before them were there already."""
    return Span(scale.length(span.start) if span.start else 0, scale.length(span.stop))


@dataclass(frozen=True)
class Pieces:
    """How single pieces of an input are run.

    Attributes:
        call: runs one on the device.
        device: where.
        name: of the network, for errors.
        before_call: called before each call; may raise to stop.
        after_call: called after each.
        wider: for pieces whose result is not finite, where there is a wider dtype.
        redone: told about each of them.
        onward: runs one that follows the last, where the network can.
        done: called after the last of those that follow each other.
        stay: results stay on the device.
        steps: a context in which a call tells the pieces in time that it reads or makes.
    """

    call: Call
    device: torch.device
    name: str
    before_call: Callable[[], None] = lambda: None
    after_call: Callable[[], None] = lambda: None
    wider: Wider | None = None
    redone: Redone = lambda *_: None
    onward: Onward | None = None
    done: Callable[[], None] = lambda: None
    stay: bool = False
    steps: Callable[[Callable[[torch.Tensor], None]], AbstractContextManager[None]] | None = None

    def one(self, source: torch.Tensor, writes: tuple[Span, ...]) -> torch.Tensor:
        """The result of one contiguous piece, on the host (or not) as a tensor of its own.

        One that is not finite although its source is, is run again in a wider dtype: blended, it
        would spoil its neighbours, since ``0 × NaN`` is NaN.
        """
        (result,) = self.in_turn([source], [writes], self.call)
        return result

    def in_turn(
        self,
        sources: Sequence[torch.Tensor],
        writes: Sequence[tuple[Span, ...]],
        call: Call | None = None,
    ) -> list[torch.Tensor]:
        """The results of pieces that follow each other, each as of `one`."""
        results = self._each(sources, call)
        if self.wider is not None and not _finite(results) and _finite(sources):
            usual = results[0].dtype
            with self.wider() as dtype:
                again = self._each([source.to(dtype) for source in sources], call)
            results = [result.to(usual) for result in again]
            helped = _finite(results)
            for write in writes:
                self.redone(write, dtype, helped)
        for _ in sources:
            self.after_call()
        return results

    def given_away(
        self,
        sources: Sequence[torch.Tensor],
        writes: Sequence[tuple[Span, ...]],
        delivery: Delivery,
        shape: Callable[[tuple[Span, ...]], tuple[int, ...]],
    ) -> None:
        """Like `in_turn`, but each result goes to `delivery` as it comes.

        Where one is not finite, all begin anew in the wider dtype. `shape` is what is expected.
        """
        usual: list[torch.dtype] = []

        def run(given: Iterable[torch.Tensor], *, strict: bool) -> tuple[Span, ...] | None:
            delivery.begin()
            for source, write, result in zip(
                sources, writes, self._turns(given, None), strict=True
            ):
                self.expect(result, shape(write))
                usual.append(result.dtype)
                if strict and not _finite([result]) and _finite([source]):
                    return write
                delivery.take(result.to(usual[0]))
                self.after_call()
            return None

        bad = run(sources, strict=self.wider is not None)
        if bad is not None and self.wider is not None:
            with self.wider() as dtype:
                still = run((source.to(dtype) for source in sources), strict=False)
            self.redone(bad, dtype, still is None)
        self.done()

    def filled(self, fill: Fill) -> AbstractContextManager[None]:
        """While inside, a call's input is filled just before the network reads of it."""
        read = 0

        def tell(piece: torch.Tensor) -> None:
            nonlocal read
            read += piece.shape[2]
            fill(read)

        return nullcontext() if self.steps is None else self.steps(tell)

    def on_its_way(
        self, source: torch.Tensor, delivery: Delivery, sizes: tuple[int, ...]
    ) -> torch.Tensor | None:
        """Like `one`, but what a call makes goes to `delivery` before it makes the next.

        The result without its values; None where it was not made of what it told.
        """
        strict = self.wider is not None and _finite([source])
        usual: list[torch.dtype] = []

        def run(given: torch.Tensor, *, strict: bool) -> tuple[torch.Tensor | None, bool]:
            """The result, and whether all of it was finite, as far as it got."""
            assert self.steps is not None
            told, good = 0, True
            shape: tuple[int, ...] = ()

            def tell(made: torch.Tensor) -> None:
                nonlocal told, good
                usual.append(made.dtype)
                told += made.shape[2]
                good = good and (self.wider is None or _finite([made]))
                if strict and not good:
                    raise _NotFinite
                delivery.take(made.to(usual[0]))

            delivery.begin()
            self.before_call()
            with suppress(_NotFinite), torch.no_grad(), self.steps(tell):
                result = self.call(given.to(self.device).contiguous())
                self.expect(result, (1, result.shape[1], *sizes))
                shape = (0, *result.shape[1:])
                del result
            if told != sizes[0]:
                return None, good
            return torch.empty(shape, dtype=usual[0]), good

        left, good = run(source, strict=strict)
        if strict and not good and self.wider is not None:
            with self.wider() as dtype:
                left, helped = run(source.to(dtype), strict=False)
            self.redone(tuple(Span(0, size) for size in sizes), dtype, helped)
        if left is not None:
            self.after_call()
        return left

    def _each(self, sources: Sequence[torch.Tensor], call: Call | None) -> list[torch.Tensor]:
        results = list(self._turns(sources, call))
        if call is None:
            self.done()
        return results

    def _turns(self, sources: Iterable[torch.Tensor], call: Call | None) -> Iterator[torch.Tensor]:
        for at, source in enumerate(sources):
            self.before_call()
            with torch.no_grad():
                piece = source.to(self.device).contiguous()
                if call is not None:
                    result = call(piece)
                else:
                    assert self.onward is not None
                    result = self.onward(piece, at == 0)
                del piece
                on_host = result.device.type == "cpu"
                made = result.detach()
                made = made if self.stay else made.to("cpu", copy=on_host)
                del result
            yield made
            del made

    def expect(self, piece: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Raise `RuntimeError` naming both shapes where `piece` has another."""
        if tuple(piece.shape) != shape:
            raise RuntimeError(
                f"{self.name} gave {tuple(piece.shape)} where its traits promise {shape}"
            )


class _NotFinite(Exception):
    """What was made on the way to a result is to be made again, in a wider dtype."""


def run_tiled(
    pieces: Pieces,
    source: torch.Tensor,
    *,
    grid: Grid,
    channels: int,
    delivery: Delivery | None = None,
) -> torch.Tensor:
    """Run each tile of each item of `source` [B,C,…]; the result lies on the host.

    The result is [B,`channels`,…] with the sizes of `grid`, in the dtype that calls give.
    Tiles are read from wherever `source` lies and moved to the device one at a time. Sums are
    kept in float32. With a `delivery` all goes there, frame by frame where nothing but time is
    cut, and the result is empty; else it is gathered before, in a file where it is large.
    """
    items = source.shape[0]
    if delivery is not None and items == 1 and grid.onward and len(list(grid.places)) == 1:
        return _given_away(pieces, source, grid, channels, delivery)
    out = _zeros((items, channels, *grid.sizes), delivery)
    dtype = out.dtype
    for item, together in itertools.product(range(items), grid.places):
        reads, writes = (
            [_spans(of, place) for place in together] for of in (grid.reads, grid.writes)
        )
        sources = [_part(source, item, read) for read in reads]
        if grid.onward:
            results = pieces.in_turn(sources, writes)
        else:
            results = [pieces.one(sources[0], writes[0])]
        for place, write, piece in zip(together, writes, results, strict=True):
            pieces.expect(piece, (1, channels, *(len(span) for span in write)))
            dtype, weighed = piece.dtype, piece.float()
            for dim, (weights, at) in enumerate(zip(grid.weights, place, strict=True), start=2):
                if any(weight != 1 for weight in weights[at]):
                    shape = [1] * dim + [-1] + [1] * (piece.dim() - dim - 1)
                    weighed = weighed * torch.tensor(weights[at]).view(shape)
            _part(out, item, write).add_(weighed)
    if delivery is None:
        return out.to(dtype)
    delivery.begin()
    for part in parts_of(out):
        delivery.take(part.to(dtype))
    return out.new_empty((0, *out.shape[1:]))


def _given_away(
    pieces: Pieces, source: torch.Tensor, grid: Grid, channels: int, delivery: Delivery
) -> torch.Tensor:
    """One clip of which time alone is cut."""
    (together,) = grid.places
    reads, writes = ([_spans(of, place) for place in together] for of in (grid.reads, grid.writes))
    pieces.given_away(
        [_part(source, 0, read) for read in reads],
        writes,
        delivery,
        lambda write: (1, channels, *(len(span) for span in write)),
    )
    return torch.empty((0, channels, *grid.sizes))


def _zeros(shape: tuple[int, ...], delivery: Delivery | None) -> torch.Tensor:
    """In memory, or in a file that a delivery has for it."""
    count = math.prod(shape)
    file = None if delivery is None else delivery.spool(4 * count)
    if file is None:
        return torch.zeros(shape, dtype=torch.float32)
    mapped = torch.from_file(str(file), shared=True, size=count, dtype=torch.float32)
    return mapped.view(shape)


def run_whole(
    pieces: Pieces,
    source: torch.Tensor,
    *,
    batch: int,
    sizes: tuple[int, ...] | None,
    delivery: Delivery | None = None,
    fill: Fill = is_whole,
) -> torch.Tensor:
    """Run `batch` items of `source` [B,C,…] at a time; the result [B,C,*sizes] is on the host.

    `sizes` None takes whatever sizes come. With a `delivery` all goes there, straight from the
    device, and the result is empty; one clip of a network that goes in steps, step by step.
    Before anything is read, `source` is filled so far: by items, or by the frames of one clip.
    """
    results = []
    walks = pieces.steps is not None and source.shape[0] == 1
    if delivery is not None and walks and sizes is not None:
        fill(None)
        left = pieces.on_its_way(source, delivery, sizes)
        if left is not None:
            return left
    if delivery is not None:
        pieces = replace(pieces, stay=True)
        delivery.begin()
    for at, part in enumerate(torch.split(source, batch)):
        if source.dim() != 5:
            fill((at + 1) * batch)
        elif not walks:
            fill(None)
        with pieces.filled(fill) if walks and delivery is None else nullcontext():
            piece = pieces.one(part, tuple(Span(0, size) for size in sizes or ()))
        if sizes is not None:
            pieces.expect(piece, (part.shape[0], piece.shape[1], *sizes))
        if delivery is None:
            results.append(piece)
        else:
            results[:] = [hand_over(delivery, piece)]
        del piece
    return results[0] if len(results) == 1 else torch.cat(results)


def _spans(of: tuple[tuple[Span, ...], ...], place: tuple[int, ...]) -> tuple[Span, ...]:
    return tuple(spans[at] for spans, at in zip(of, place, strict=True))


def _part(values: torch.Tensor, item: int, spans: tuple[Span, ...]) -> torch.Tensor:
    """One item [1,C,…] of `values`, within `spans`."""
    return values[(slice(item, item + 1), slice(None), *(span.slice for span in spans))]


def _finite(values: Sequence[torch.Tensor]) -> bool:
    """Looked at in parts: on a card there may be no room for one more of them."""
    return all(bool(torch.isfinite(part).all()) for each in values for part in parts_of(each))
