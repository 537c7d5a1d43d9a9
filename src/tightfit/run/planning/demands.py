"""From models that were weighed to the demands that the planner takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightfit.card.outlook import Outlook
from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.figure import NOTHING, UNKNOWN, Figure
from tightfit.plan.size import Size
from tightfit.plan.tilesize import TileWish
from tightfit.run.planning.gauge import Gauge, Working
from tightfit.units import MIB
from tightfit.weigh.blocks import Block, Weights
from tightfit.weigh.workspace import LIBRARIES

SLACK = {"native": 0.35, "async": 0.09, "expandable": 0.07}
"""Reserved above allocated where no replay tells: the most that one told for a known network."""
_GRAINS = {"native": 2 * MIB, "async": 32 * MIB, "expandable": 20 * MIB}
_AUTO = TileWish()
_TILES = (1024, 768, 512, 384, 256, 192, 128, 64)


@dataclass(frozen=True)
class Model:
    """One stage of one network, weighed.

    Attributes:
        name: of the network: ``flux.1-dev/transformer``.
        stage: ``encode text``, ``denoise``, ``decode`` or ``encode``.
        weights: in blocks.
        gauge: what it needs beside them.
        calls: of the network in this stage.
        tiles: whether the stage can be done in tiles.
        mapped: the file holds the weights in the form that is copied.
        staying: blocks that cannot be streamed, with the reason.
    """

    name: str
    stage: str
    weights: Weights
    gauge: Gauge
    calls: int = 1
    tiles: bool = False
    mapped: bool = False
    staying: tuple[tuple[str, str], ...] = ()


def demands_of(
    models: Sequence[Model], size: Size, card: Outlook, *, tile: TileWish = _AUTO
) -> list[Demand]:
    """One demand for each stage of each model, for a job of `size`."""
    stages = [model.stage for model in models]
    return [
        _demand(model, size, card, tile, alone=stages.count(model.stage) == 1) for model in models
    ]


def _demand(model: Model, size: Size, card: Outlook, tile: TileWish, *, alone: bool) -> Demand:
    whole = model.gauge.at(size, allocator=card.allocator)
    ways = [_way("whole", whole, card)]
    if model.tiles and tile.mode != "off":
        tiled = list(_tiled(model, size, card, tile))
        ways = tiled if tile.mode == "size" and tiled else [*ways, *tiled]
    return Demand(
        stage=model.stage if alone else f"{model.stage} ({_short(model.name)})",
        units=tuple(_units(model)),
        ways=tuple(ways),
        inputs=_input_bytes(model, size),
        calls=model.calls,
        flops=whole.flops,
        what=_what(model, size),
        model=model.name,
        mapped=model.mapped,
    )


def _way(name: str, working: Working, card: Outlook, *, exact: bool = True) -> Way:
    """Activations, scratch and slack apart. On a card without scratch there is none of either."""
    if working.dry is None or working.allocated is None:
        return Way(name, UNKNOWN, exact=exact)
    scratch = slack = NOTHING
    if card.scratch:
        scratch = Figure(working.allocated - working.dry + LIBRARIES, working.source)
    share = SLACK.get(card.allocator)
    if share is not None and working.least is not None:
        slack = Figure(max(0, working.least - working.allocated), working.source)
    elif share is not None:
        slack = Figure(int(working.allocated * share) + _GRAINS[card.allocator], "table")
    return Way(name, Figure(working.dry, working.source), scratch, slack, exact)


def _tiled(model: Model, size: Size, card: Outlook, wish: TileWish) -> Iterator[Way]:
    """Smaller and smaller tiles, from the one that was asked for; one item at a time."""
    for height, width in _tile_sizes(wish):
        tile = Size(min(width, size.width), min(height, size.height), size.frames)
        if tile.area < size.area:
            working = model.gauge.at(tile, allocator=card.allocator)
            yield _way(f"tiles {tile.width}x{tile.height}", working, card, exact=False)


def _tile_sizes(wish: TileWish) -> Iterator[tuple[int, int]]:
    if wish.height is None or wish.width is None:
        yield from ((side, side) for side in _TILES)
        return
    yield wish.height, wish.width
    yield from ((side, side) for side in _TILES if side < min(wish.height, wish.width))


def _units(model: Model) -> Iterator[Unit]:
    staying = dict(model.staying)
    for block in model.weights.blocks:
        yield _unit(block, staying.get(block.name))


def _unit(block: Block, stays: str | None) -> Unit:
    """A block with its leaves."""
    parts = tuple(
        Unit(
            leaf.name or f"{block.name or 'root'} (own)",
            leaf.stored_bytes,
            leaf.converted_bytes,
            leaf.largest_bytes or None,
        )
        for leaf in block.leaves
    )
    return Unit(
        block.name or "root",
        block.stored_bytes,
        block.converted_bytes,
        parts=parts if len(parts) > 1 else (),
        largest=None if len(parts) > 1 else block.largest_bytes or None,
        stays=stays,
    )


def _input_bytes(model: Model, size: Size) -> int:
    """Of what lies on the card from the start: frames that are encoded; latents are too small."""
    if model.stage != "encode":
        return 0
    return 3 * 2 * size.samples * size.batch


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _what(model: Model, size: Size) -> str:
    if model.stage == "encode text":
        return f"encode text with {model.name}"
    return f"{model.stage} {size} with {model.name}"
