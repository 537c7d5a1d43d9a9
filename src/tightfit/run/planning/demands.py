"""From models that were weighed to the demands that the planner takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tightfit.allocators import ASYNC_GRAIN, LARGE_ROUNDING, LARGE_SEGMENT
from tightfit.card.outlook import Outlook
from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.figure import NOTHING, UNKNOWN, Figure
from tightfit.plan.size import Size
from tightfit.plan.tilesize import TileWish
from tightfit.run.planning.gauge import Working
from tightfit.run.planning.model import Model, items_of
from tightfit.run.planning.tile_sizes import tile_name, tiles_of, wished
from tightfit.weigh.blocks import Block
from tightfit.weigh.workspace import LIBRARIES

SLACK = {"native": 0.35, "async": 0.09, "expandable": 0.07}
"""Reserved above allocated where no replay tells: the most that one told for a known network."""
_GRAINS = {"native": LARGE_ROUNDING, "async": ASYNC_GRAIN, "expandable": LARGE_SEGMENT}
_FLOAT32 = 2
"""Operations in float32 count twice: of those, cards do at most half as many a second."""
_AUTO = TileWish()
_OF_A_VAE = "the weights of a VAE stay on the card while it runs, as encode and decode place them"


def demands_of(
    models: Sequence[Model], size: Size, card: Outlook, *, tile: TileWish = _AUTO
) -> list[Demand]:
    """One demand for each stage of each model, for a job of `size` that `cast_size` gave."""
    names = _stage_names(models)
    return [
        _demand(model, size, card, tile, name) for model, name in zip(models, names, strict=True)
    ]


def _stage_names(models: Sequence[Model]) -> list[str]:
    """Each once: where several do the same, with as much of the network's name as it takes."""
    stages = [model.stage for model in models]
    short = [f"{model.stage} ({_short(model.name)})" for model in models]
    full = [f"{model.stage} ({model.name})" for model in models]
    return [
        stage if stages.count(stage) == 1 else brief if short.count(brief) == 1 else long
        for stage, brief, long in zip(stages, short, full, strict=True)
    ]


def _demand(model: Model, size: Size, card: Outlook, tile: TileWish, name: str) -> Demand:
    whole = model.whole(size)
    flops = model.gauge.at(whole, allocator=card.allocator).flops
    if flops is not None:
        flops *= items_of(model.steps, size) / whole.batch if model.tiles else 1
        flops *= _FLOAT32 if model.dtype == "float32" else 1
    return Demand(
        stage=name,
        units=tuple(_units(model)),
        ways=tuple(_ways(model, whole, card, tile)),
        calls=model.calls,
        flops=flops,
        what=_what(model, size),
        model=model.name,
        mapped=model.mapped,
    )


def _ways(model: Model, whole: Size, card: Outlook, wish: TileWish) -> Iterator[Way]:
    """As a job climbs its ladder: everything, one item at a time, in strips, then in tiles.

    A tile that was asked for comes first, unless it covers everything.
    """
    one = replace(whole, batch=1) if model.tiles else whole
    forced = wish.mode == "size" and model.tiles and wished(model.steps, one, wish) != one
    if not forced:
        yield _way("whole", model.gauge.at(whole, allocator=card.allocator), card)
        if whole != one:
            yield _way("batch of 1", model.gauge.at(one, allocator=card.allocator), card)
        if model.strips is not None:
            yield model.strips.way(one, card, slack=SLACK.get(card.allocator, 0.0))
    if not model.tiles or wish.mode == "off":
        return
    for tile in tiles_of(model.steps, one, wish):
        working = model.gauge.at(tile, allocator=card.allocator)
        yield _way(tile_name(tile, one), working, card, exact=False)


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


def _units(model: Model) -> Iterator[Unit]:
    staying = dict(model.staying)
    for block in model.weights.blocks:
        yield _unit(block, staying.get(block.name) or (_OF_A_VAE if model.tiles else None))


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


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _what(model: Model, size: Size) -> str:
    if model.stage == "encode text":
        return f"encode text with {model.name}"
    return f"{model.stage} {size} with {model.name}"
