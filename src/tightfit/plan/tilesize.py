"""Which tile sizes are asked for, legal, and worth trying."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tightfit.errors import UsageError
from tightfit.plan.tiles import Axis

FLOOR = 8
"""No spatial tile is smaller than this many latent units, unless the axis itself is."""
SOUND_FLOOR = 1
"""A unit of sound is a hop of a thousand samples or more: one alone is a tile."""
TIME_FLOOR = 2
"""No tile in time is shorter than this many latent units, unless the axis itself is."""
_OVERLAP_SHARE = 0.25
_MOST_OVERLAP = 0.75
_COUNTS = (1, *sorted({2**n for n in range(1, 20)} | {3 * 2**n for n in range(19)}))
_FORMS = "auto, off, N, HxW or FRAMESxHxW in pixels and frames"
_TILE = re.compile(r"(?:(\d+)x)?(\d+)x(\d+)|(\d+)")
_OVERLAP = re.compile(r"(?:(\d+)x)?(\d+)")


@dataclass(frozen=True)
class TileWish:
    """What the user said about tiles, in samples; see `parse_tile`.

    Attributes:
        mode: ``auto``, ``off`` (never tile) or ``size`` (always tile).
        height: of a tile, None unless mode is ``size``.
        width: likewise.
        frames: likewise; None leaves time whole.
        overlap: in samples of height and width; None is a quarter of the tile.
        overlap_frames: likewise in frames.
    """

    mode: str = "auto"
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    overlap: int | None = None
    overlap_frames: int | None = None


def parse_tile(tile: str = "auto", overlap: str | None = None) -> TileWish:
    """Parse ``--tile`` and ``--overlap``. Raises `UsageError` with the legal forms."""
    text = tile.strip().lower()
    if text in ("auto", "off"):
        wish = TileWish(mode=text)
    else:
        match = _TILE.fullmatch(text)
        if not match:
            raise UsageError(f"--tile `{tile}` is not a tile: use {_FORMS}.")
        frames, height, width, side = (int(g) if g else None for g in match.groups())
        wish = TileWish("size", *((side, side) if height is None else (height, width)), frames)
        if 0 in (wish.height, wish.width, frames):
            raise UsageError(f"--tile `{tile}` has a zero: use {_FORMS}.")
    if overlap is not None:
        match = _OVERLAP.fullmatch(overlap.strip().lower())
        if not match:
            raise UsageError(
                f"--overlap `{overlap}` is not an overlap: use N or FRAMESxN, 0 or more and below "
                "the tile."
            )
        wish = replace(
            wish, overlap=int(match[2]), overlap_frames=int(match[1]) if match[1] else None
        )
    for name, size, over in (
        ("height", wish.height, wish.overlap),
        ("width", wish.width, wish.overlap),
        ("frames", wish.frames, wish.overlap_frames),
    ):
        if size is not None and over is not None and over >= size:
            raise UsageError(
                f"--overlap `{overlap}` is not below the tile's {name}, {size}: "
                f"use 0 to {size - 1}."
            )
    return wish


class Need(NamedTuple):
    """The overlap that hides what a cut spoils, in latent units.

    With `enough` there is nothing else to hide. Else something reaches across the whole axis, so
    that tiles differ everywhere, and a quarter of the tile at least is blended.
    """

    units: int
    enough: bool = True


_UNKNOWN = Need(0, enough=False)


@dataclass(frozen=True)
class Tile:
    """A tile in latent units: one size and one overlap per axis, in the order of the axes."""

    sizes: tuple[int, ...]
    overlaps: tuple[int, ...]


def check_wish(wish: TileWish, *, spatial: int, temporal: int, axes: int = 2) -> None:
    """Refuse a tile below the floor of a VAE with these ratios (samples per latent unit).

    `axes` is 1 for sound, whose tile is a number of samples.
    """
    if axes == 1:
        if wish.width is not None and wish.width < spatial:
            raise UsageError(f"--tile: {wish.width} samples are below a hop of {spatial}.")
        return
    floor = FLOOR * spatial
    for name, size in (("height", wish.height), ("width", wish.width)):
        if size is not None and size < floor:
            raise UsageError(
                f"--tile: {name} {size} is below the floor of {floor} pixels "
                f"({FLOOR} latent pixels of {spatial})."
            )
    if wish.frames is not None and wish.frames < (TIME_FLOOR - 1) * temporal + 1:
        raise UsageError(
            f"--tile: {wish.frames} frames are below the floor of "
            f"{(TIME_FLOOR - 1) * temporal + 1}."
        )


def wished_tile(
    wish: TileWish, axes: tuple[Axis, ...], *, needs: Sequence[Need | None] = ()
) -> tuple[Tile, tuple[str, ...]]:
    """The tile that `wish` asks for on these axes ([time,] height, width), and what was adjusted.

    Sizes are rounded down to whole latent units and cut to the axis; an axis shorter than the
    floor is taken whole. `needs`: see `overlapped`.
    """
    sizes = []
    notes = []
    for axis, floor, name, asked in _per_axis(wish, axes):
        if asked is None:
            sizes.append(axis.length)
            continue
        units = max(floor, _units(asked, axis))
        covered = _samples(units, axis)
        if covered != asked and units < axis.length:
            notes.append(f"tile {name} {asked} rounded to {covered}")
        sizes.append(min(units, axis.length))
    tile = overlapped(tuple(sizes), wish, axes, needs=needs)
    return tile, (*notes, *overlap_notes(tile, wish, axes))


def overlap_notes(tile: Tile, wish: TileWish, axes: tuple[Axis, ...]) -> tuple[str, ...]:
    """What became of the overlaps that were asked for, where `tile` has others."""
    notes = []
    for (axis, _, name, _), size, units in zip(
        _per_axis(wish, axes), tile.sizes, tile.overlaps, strict=True
    ):
        wished = wish.overlap_frames if name == "frames" else wish.overlap
        covered = _samples(units, axis)
        if wished is None or size >= axis.length or wished == covered:
            continue
        of = " in frames" if name == "frames" else ""
        notes.append(f"overlap{of} {wished} became {covered}")
    return tuple(dict.fromkeys(notes))


def smaller_tiles(
    axes: tuple[Axis, ...],
    *,
    start: tuple[int, ...] | None,
    time: bool,
    fine: bool,
    needs: Sequence[Need | None] = (),
) -> Iterator[tuple[int, ...]]:
    """Ever smaller tile sizes in latent units, down to the floor, each one once.

    Sizes are those that n tiles per axis just cover with their overlaps, so that little is
    computed twice: two tiles of half the axis would leave no overlap, and three would be needed.

    Args:
        axes: [time,] height, width (or length alone).
        start: begin below this size; None is the whole.
        time: the first axis is time and may be cut, once height and width are at the floor.
        fine: split one axis at a time (when a planner picks), else all axes at once.
        needs: see `overlapped`.
    """
    whole = tuple(axis.length for axis in axes)
    base = start or whole
    seen = {whole, base}
    space = range(1 if len(axes) == 3 else 0, len(axes))
    floor = SOUND_FLOOR if len(axes) == 1 else FLOOR
    steps = [0] * len(axes)
    current = base
    while any(current[at] > min(floor, base[at]) for at in space):
        if fine:
            steps[max(space, key=lambda at: current[at])] += 1
        else:
            steps = [step + 2 if step else 1 for step in steps]  # 2, 4, 8 … tiles
        sizes = list(base)
        for at in space:
            count = _COUNTS[min(steps[at], len(_COUNTS) - 1)]
            size = _covering(base[at], count, needs[at] if needs else None)
            sizes[at] = max(min(floor, base[at]), min(size, current[at]))
        current = tuple(sizes)
        if current not in seen:
            seen.add(current)
            yield current
    while time and current[0] > TIME_FLOOR:
        current = (max(TIME_FLOOR, -(-current[0] // 2)), *current[1:])
        if current not in seen:
            seen.add(current)
            yield current


def _covering(length: int, count: int, need: Need | None) -> int:
    """The size of which `count` tiles just cover `length` with their overlaps."""
    share = _OVERLAP_SHARE
    if need is not None and need.enough:
        size = -(-(length + (count - 1) * need.units) // count)
        if need.units <= size * _MOST_OVERLAP:
            return size
        share = _MOST_OVERLAP
    return -int(-length // (1 + (1 - share) * (count - 1)))


def overlapped(
    sizes: tuple[int, ...],
    wish: TileWish,
    axes: tuple[Axis, ...],
    *,
    needs: Sequence[Need | None] = (),
) -> Tile:
    """Add overlaps: as wished, else as wide as cuts need it, else a quarter of the tile.

    `needs` are per axis; None (or nothing at all) is unknown. No overlap that was not wished is
    above three quarters of the tile, which has to get on.
    """
    overlaps = []
    for at, ((axis, _, name, _), size) in enumerate(zip(_per_axis(wish, axes), sizes, strict=True)):
        wished = wish.overlap_frames if name == "frames" else wish.overlap
        if size >= axis.length:
            overlaps.append(0)
            continue
        if wished is not None:
            units = min(_units(wished, axis), size - 1)
        else:
            need = (needs[at] if needs else None) or _UNKNOWN
            quarter = 0 if need.enough else int(size * _OVERLAP_SHARE)
            units = min(max(quarter, need.units), int(size * _MOST_OVERLAP))
        overlaps.append(max(units, 1 if axis.lead else 0))
    return Tile(sizes, tuple(overlaps))


def _units(samples: int, axis: Axis) -> int:
    """Whole latent units in so many samples from a tile's beginning."""
    return max(0, (samples - axis.lead) // axis.ratio + axis.lead)


def _samples(units: int, axis: Axis) -> int:
    """Samples of so many latent units at a tile's beginning."""
    return max(0, (units - axis.lead) * axis.ratio + axis.lead)


def _per_axis(
    wish: TileWish, axes: tuple[Axis, ...]
) -> Iterator[tuple[Axis, int, str, int | None]]:
    if len(axes) == 1:
        yield axes[0], SOUND_FLOOR, "length", wish.width
        return
    if len(axes) == 3:
        yield axes[0], TIME_FLOOR, "frames", wish.frames
    yield axes[-2], FLOOR, "height", wish.height
    yield axes[-1], FLOOR, "width", wish.width
