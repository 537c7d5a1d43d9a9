"""Which tiles a plan looks at, in pixels and frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tightfit.plan.size import Size
from tightfit.plan.tilesize import FLOOR, TIME_FLOOR, TileWish
from tightfit.run.planning.steps import Steps

_SIDES = (1024, 768, 512, 384, 256, 192, 128, 64)


def tiles_of(steps: Steps, one: Size, wish: TileWish) -> Iterator[Size]:
    """Smaller and smaller tiles of `one` item, from the one that was asked for.

    None is below the floor; time is cut last, and only where that helps.
    """
    first = wished(steps, one, wish)
    floor = FLOOR * steps.side
    sizes = [one, first]
    for side in _SIDES:
        if floor <= side < max(first.width, first.height):
            width, height = min(side, first.width), min(side, first.height)
            sizes.append(replace(first, width=width, height=height))
    shortest = 1 + (TIME_FLOOR - 1) * (steps.frames or 1)
    while steps.cuts_time and sizes[-1].frames > shortest:
        half = replace(sizes[-1], frames=max(shortest, sizes[-1].frames // 2))
        sizes.append(replace(half, frames=steps.cast(half).frames))
    yield from dict.fromkeys(size for size in sizes if size != one)


def wished(steps: Steps, one: Size, wish: TileWish) -> Size:
    """The tile that was asked for, within `one` item; all of it, where none was."""
    if wish.height is None or wish.width is None:
        return one
    frames = one.frames if wish.frames is None or steps.frames is None else wish.frames
    return replace(
        one,
        width=min(wish.width, one.width),
        height=min(wish.height, one.height),
        frames=min(frames, one.frames),
    )


def tile_name(tile: Size, one: Size) -> str:
    """As reports call it: height before width, with frames where time is cut."""
    cut = "" if tile.frames == one.frames else f"{tile.frames}x"
    return f"tiles {cut}{tile.height}x{tile.width}"
