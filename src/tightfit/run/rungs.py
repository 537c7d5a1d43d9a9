"""The rungs of a VAE: every way to run it on one input, in the order to try them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.plan.tiles import Axis, Edge
from tightfit.plan.tilesize import (
    Tile,
    TileWish,
    overlap_notes,
    smaller_tiles,
    wished_tile,
)
from tightfit.run.boxes import Box, Tell, tile_boxes
from tightfit.run.ceiling import Outputs, ceiling_of
from tightfit.run.cutting import Cutting
from tightfit.run.delivery import Delivery
from tightfit.run.estimate import Estimator
from tightfit.run.intake import Fill, is_whole
from tightfit.run.ladder import Rung
from tightfit.run.overflow import pieces_of
from tightfit.run.pieces import Pieces
from tightfit.run.tile_error import tile_error
from tightfit.run.tiling import lay_grid, run_tiled, run_whole
from tightfit.run.vae import Direction, Vae
from tightfit.units import format_bytes
from tightfit.weigh.calibration import Seen

EVICT = "evict idle models"
EVICTED = ", idle models evicted"
"""What the names of lower rungs end with that run once those are gone."""
_WORTH_A_LINE = 4
_SURELY_TOO_MUCH = 0.9
"""The line is not exact: a size is left out when nine tenths of what it says are too much."""

Progress = Callable[[str, int, int], None]
"""Called with (rung, calls done, calls in all)."""


@dataclass
class VaeRungs:
    """The ways to code `source` with `vae`.

    Attributes:
        vae: runs.
        direction: which way.
        source: [B,C,…], on the card or on the host; sizes are legal for the VAE.
        host: gives the same on the host; None where `source` lies there.
        device: where the VAE's weights are.
        call: the VAE's call for this direction.
        channels: of what it gives.
        estimator: predicts needs.
        fine: offer more sizes of tiles, for a planner to pick from.
        wish: what the user said about tiles.
        before_call: called before each call of the VAE; may raise to stop.
        progress: called after each call of the VAE.
        adjusted: what was changed of what was wished, filled as rungs are made and tried.
        probed: what the smallest tile was seen to take, where a wrong prediction called for it.
        fill: fills the source, which may not be whole yet.
        delivery: takes the result as it comes; then what the rungs give is empty.
        exact_ways: gives ways in parts that differ from the whole by rounding alone; asked for
            only after the whole.
    """

    vae: Vae
    direction: Direction
    source: torch.Tensor
    host: Callable[[], torch.Tensor] | None
    device: torch.device
    call: Callable[[torch.Tensor], torch.Tensor]
    channels: int
    estimator: Estimator
    fine: bool
    wish: TileWish
    before_call: Callable[[], None]
    progress: Tell
    adjusted: list[str] = field(default_factory=list)
    probed: Seen | None = None
    fill: Fill = is_whole
    delivery: Delivery | None = None
    exact_ways: Callable[[], Iterator[Rung[torch.Tensor]]] | None = None
    _outputs: Outputs | None = None
    _may_probe: bool = True
    _hopeless: bool = False
    _fell: int = 0

    @property
    def cutting(self) -> Cutting:
        """Where tiles are cut."""
        return Cutting(self.vae, self.direction, tuple(self.source.shape), self.wish)

    def filled(self) -> torch.Tensor:
        """The source, whole."""
        self.fill(None)
        return self.source

    @property
    def batch(self) -> int:
        """Items in one call of the whole rung."""
        return min(self.source.shape[0], MOST_AT_ONCE)

    def in_order(
        self,
        evict: Callable[[int | None], int] | None = None,
        room: Callable[[], int] | None = None,
        others: int = 0,
    ) -> Iterator[Rung[torch.Tensor]]:
        """The rungs that apply, made one at a time, as DESIGN §8 orders them.

        With `room` (the bytes that are free now), a planner's sizes of tiles that are far above it
        are left out; the smallest never is. After a try that was predicted to fit and did not,
        the smallest tile is run once to measure what the dry run does not see. Where nothing holds
        beside idle models, which hold `others` bytes at most, `evict` asks all of them to go.
        """
        axes = self.cutting.axes
        uncut = tuple(axis.length for axis in axes)
        wished: tuple[int, ...] | None = None
        if self.wish.mode == "size":
            tile, notes = wished_tile(self.wish, axes)
            self.adjust(*notes)
            wished = tile.sizes
        if wished in (None, uncut):
            whole = self.whole(self.batch)
            yield whole
            if evict is not None:
                prepare, need = evict, whole.need
                yield Rung(
                    EVICT,
                    whole.run,
                    need=need,
                    prepare=lambda: prepare(need()),
                    key=whole.identity,
                    tell=whole.tell,
                    barred=whole.barred,
                )
            if self.batch > 1:
                if self.wish.mode != "off":
                    yield from self._probe()
                if not self._hopeless:
                    one = self.whole(1)
                    yield one
                    if evict is not None:
                        goes, of_one = evict, one.need
                        name = f"{one.name}{EVICTED}"
                        yield replace(one, name=name, prepare=lambda: goes(of_one()))
        if self.exact_ways is not None and self.wish.mode != "size":
            yield from self.exact_ways()
        if self.wish.mode == "off":
            return
        if wished == uncut:
            self.adjust("the tile asked for covers everything, so a smaller one was tried")
        yield from self._tiles(axes, wished, room)
        if self.host is not None:
            # Tiles are read from anywhere: without the input on the card they have more room.
            for at, rung in enumerate(self._tiles(axes, wished, room)):
                renamed = replace(rung, name=f"{rung.name}, input on the host")
                yield renamed if at else replace(renamed, prepare=self.input_to_host)
        if evict is not None:
            yield from self._alone(axes, wished, evict, room, others)

    def _alone(
        self,
        axes: tuple[Axis, ...],
        wished: tuple[int, ...] | None,
        evict: Callable[[int | None], int],
        room: Callable[[], int] | None,
        others: int,
    ) -> Iterator[Rung[torch.Tensor]]:
        """Tiles once more, where there was no room for them beside models that could go."""
        freed: list[int] = []

        def go() -> int:
            freed.append(evict(None))
            return freed[0]

        def there() -> int:
            assert room is not None
            return room() if freed else room() + others

        self._hopeless, self._fell = False, 0
        for rung in self._tiles(axes, wished, None if room is None else there):
            if freed and not freed[0]:
                return
            renamed = replace(rung, name=f"{rung.name}{EVICTED}")
            yield renamed if freed else replace(renamed, prepare=go)

    def _probe(self, failed: tuple[int, ...] | None = None) -> Iterator[Rung[torch.Tensor]]:
        """After a try that was predicted to fit and did not: one call on the smallest tile.

        `failed` is the tile that was tried, None for a whole run; there is nothing to learn where
        it was the smallest itself. A probe that does not hold either leaves only smallest tiles.
        """
        if not (self._may_probe and self.fine and self.estimator.missed):
            return
        self._may_probe = False
        sizes = list(
            smaller_tiles(self.cutting.axes, start=None, time=self.vae.traits.tiles_time, fine=True)
        )
        if not sizes or (failed is not None and prod(failed) <= prod(sizes[-1])):
            return
        shape = self.cutting.read(sizes[-1])
        learn = self._told(shape, piece=True)

        def run() -> torch.Tensor:
            corner = tuple(slice(0, size) for size in shape)
            pieces = Pieces(self.call, self.device, self.vae.traits.name, self.before_call)
            return run_whole(pieces, self.filled()[corner], batch=1, sizes=None)

        def tell(measured: int | None, held: bool) -> None:
            before = self.estimator.calibration
            learn(measured, held)
            if self.estimator.calibration != before:
                self.probed = self.estimator.calibration.seen[-1]
            self._hopeless = not held

        name, tile = f"probe {self.cutting.name(sizes[-1])}", self.cutting.samples(sizes[-1])
        yield Rung(name, run, tile=tile, tell=tell, probe=True)

    def _told(self, shape: tuple[int, ...], *, piece: bool) -> Callable[[int | None, bool], None]:
        """Lets the estimator learn from a call on `shape`; `piece`: its copy was counted too.

        Where it is not asked it learns nothing: a dry run may take a second.
        """
        copied = prod(shape) * self.source.element_size() if piece else 0

        def tell(measured: int | None, held: bool) -> None:
            inside = None if measured is None else measured - copied
            self._fell = 0 if held else prod(shape[2:])
            if self.fine:
                self.estimator.learn(shape, inside, held=held)

        return tell

    def _tiles(
        self,
        axes: tuple[Axis, ...],
        wished: tuple[int, ...] | None,
        room: Callable[[], int] | None,
    ) -> Iterator[Rung[torch.Tensor]]:
        if wished is not None and wished != tuple(axis.length for axis in axes):
            yield self.tiled(self.cutting.tile(wished))
        yield from self._probe(wished)
        time = self.vae.traits.tiles_time
        smaller = smaller_tiles(
            axes, start=wished, time=time, fine=self.fine, needs=self.cutting.needs(time=time)
        )
        for sizes in self._in_reach(tuple(smaller), room):
            yield self.tiled(self.cutting.tile(sizes), smaller_than_asked=wished is not None)
            yield from self._probe(sizes)

    def _in_reach(
        self, tiles: tuple[tuple[int, ...], ...], room: Callable[[], int] | None
    ) -> Iterator[tuple[int, ...]]:
        """`tiles` without those far above the room, and, after one that was predicted to fit and
        did not, those above half of it; where a probe ran out, the smallest alone.

        A dry run of each would cost more than it tells, and so would failing at each: two dozen
        sizes lie between a large picture and the floor.
        """
        if not self.fine or room is None:
            yield from tiles
            return
        many = len(tiles) >= _WORTH_A_LINE
        for sizes in tiles:
            far = self._hopeless or (many and self._too_much(sizes, tiles[-1], room()))
            far = far or 0 < self._fell < 2 * prod(self.cutting.read(sizes)[2:])
            if sizes == tiles[-1] or not far:
                yield sizes

    def _too_much(self, sizes: tuple[int, ...], smallest: tuple[int, ...], room: int) -> bool:
        """Whether the line through the smallest tile and the whole says so, as it is now: a probe
        between two tries moves it."""
        fixed, slope = self.estimator.line(
            self.cutting.read(smallest), (1, *self.source.shape[1:]), self.estimator.need
        )
        if fixed is None or slope is None:
            return False
        return (fixed + slope * prod(self.cutting.read(sizes)[2:])) * _SURELY_TOO_MUCH > room

    def input_to_host(self) -> int:
        """Let the card go without it; the bytes freed."""
        if self.host is None:
            return 0
        freed = self.source.nbytes
        self.fill(None)
        self.source, self.host, self.fill = self.host(), None, is_whole
        self.adjust(f"input ({format_bytes(freed)}) moved back to the host")
        return freed

    def whole(self, batch: int) -> Rung[torch.Tensor]:
        """Everything of `batch` items in one call."""
        name = "whole" if batch == self.batch else f"batch of {batch}"
        sizes = tuple(track.write.length(track.length) for track in self.cutting.tracks)
        total = -(-self.source.shape[0] // batch)

        def run() -> torch.Tensor:
            pieces = self._pieces(self._ticker(name, total))
            return run_whole(
                pieces,
                self.source,
                batch=batch,
                sizes=sizes,
                delivery=self.delivery,
                fill=self.fill,
            )

        def need() -> int | None:
            inside = self.estimator.need((batch, *self.source.shape[1:]))
            if inside is None or self.source.device == self.device:
                return inside
            return inside + self.source[:batch].nbytes

        shape = (batch, *self.source.shape[1:])
        tell = self._told(shape, piece=self.source.device != self.device)
        return Rung(
            name,
            run,
            need=need,
            key=("whole", batch),
            tell=tell,
            barred=lambda: self._above_ceiling(shape),
        )

    def tiled(self, tile: Tile, *, smaller_than_asked: bool = False) -> Rung[torch.Tensor]:
        """One item and one tile in each call."""
        edges = self.cutting.edges(tile.sizes)
        onward = self.cutting.goes_on(tile.sizes)
        grid = lay_grid(
            self.cutting.tracks, tile, edges, time=self.vae.traits.axes == 3, onward=onward
        )
        name = f"tiles {self.cutting.name(tile.sizes)}"
        total = grid.count * self.source.shape[0]
        exact = self.cutting.covers(tile, edges)
        bound: list[float | None] = []

        def run() -> torch.Tensor:
            if smaller_than_asked:
                self.adjust(f"tiles made smaller than asked: {self.cutting.name(tile.sizes)}")
            self.adjust(*overlap_notes(tile, self.wish, self.cutting.axes))
            bound[:] = [None if exact else self._measured_error(tile, edges)]
            boxes = tile_boxes(grid, self.direction)
            pieces = self._pieces(self._ticker(name, total, boxes))
            return run_tiled(
                pieces,
                self.filled(),
                grid=grid,
                channels=self.channels,
                delivery=self.delivery,
            )

        def need() -> int | None:
            shape = self.cutting.read(tile.sizes)
            inside = self.estimator.need(shape)
            piece = torch.Size(shape).numel() * self.source.element_size()
            return None if inside is None else inside + piece

        return Rung(
            name,
            run,
            tile=self.cutting.samples(tile.sizes),
            need=need,
            exact=exact,
            tell=self._told(self.cutting.read(tile.sizes), piece=True),
            barred=lambda: self._above_ceiling(self.cutting.read(tile.sizes)),
            error_bound=lambda: bound[0],
        )

    def _measured_error(self, tile: Tile, edges: tuple[Edge | None, ...]) -> float | None:
        """Before the tiles, on pieces that need no more than one of them."""
        if self.cutting.goes_on(tile.sizes):
            whole = (self.cutting.axes[0].length, *tile.sizes[1:])
            tile = Tile(whole, (0, *tile.overlaps[1:]))
        return tile_error(
            Pieces(self.call, self.device, self.vae.traits.name, self.before_call),
            self.filled() if self.host is None else self.host(),
            tracks=self.cutting.tracks,
            tile=tile,
            edges=edges,
            time=self.vae.traits.axes == 3,
            channels=self.channels,
        )

    def _pieces(self, tick: Callable[[], None]) -> Pieces:
        return pieces_of(
            self.vae,
            self.direction,
            self.call,
            self.device,
            before_call=self.before_call,
            after_call=tick,
            say=self.adjust,
        )

    def _above_ceiling(self, shape: tuple[int, ...]) -> str | None:
        """Why a source of `shape` must not be run in one piece on this device."""
        ceiling = ceiling_of(self.device)
        if ceiling is None:
            return None
        if self._outputs is None:
            self._outputs = Outputs(self.vae, self.direction)
        largest = self._outputs.largest(shape)
        if largest is None or largest <= ceiling:
            return None
        return (
            f"size ceiling: an operator would give {largest} elements, and {self.device} computes "
            f"{ceiling} at most"
        )

    def adjust(self, *notes: str) -> None:
        """Say what was done otherwise than asked, once."""
        self.adjusted.extend(note for note in notes if note not in self.adjusted)

    def _ticker(self, rung: str, total: int, boxes: Sequence[Box] = ()) -> Callable[[], None]:
        done = 0

        def tick() -> None:
            nonlocal done
            box = boxes[done % len(boxes)] if boxes else None
            done += 1
            self.progress(rung, done, total, box)

        return tick
