"""Where the pieces of a job lie in the picture, for who is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from tightfit.plan.strips.layout import Layout
from tightfit.plan.strips.reach import share
from tightfit.run.tiling import Grid
from tightfit.run.vae import Direction

Box = tuple[int, int, int, int]
"""Left, top, width, height in pixels of the picture."""
Tell = Callable[[str, int, int, Box | None], None]
"""Told of a rung, how many of its pieces are done, of how many, and where the last one lies."""
_PLANE = 2


def tile_boxes(grid: Grid, direction: Direction) -> tuple[Box, ...]:
    """Of the tiles of one item, in the order they are run in; none where there is no plane.

    The picture is what is read to encode, and what is written to decode.
    """
    spans = grid.reads if direction == "encode" else grid.writes
    if len(spans) < _PLANE:
        return ()
    rows, columns = spans[-2:]
    return tuple(
        (
            columns[place[-1]].start,
            rows[place[-2]].start,
            len(columns[place[-1]]),
            len(rows[place[-2]]),
        )
        for place in chain.from_iterable(grid.places)
    )


def strip_boxes(layout: Layout, *, axis: int, picture: Sequence[int]) -> tuple[Box, ...]:
    """Of the strips of one item, stage by stage, each the share of the picture that it keeps.

    Args:
        layout: how it is run.
        axis: that is cut, from the end: 2 is the height, 1 the width; others have no boxes.
        picture: height and width in pixels.
    """
    if len(picture) != _PLANE or axis not in (1, _PLANE):
        return ()
    height, width = picture
    boxes = []
    for stage in layout.stages:
        for index in range(len(stage.strips)):
            begin, end = share(picture[-axis], index, len(stage.strips))
            across = (begin, 0, end - begin, height)
            boxes.append(across if axis == 1 else (0, begin, width, end - begin))
    return tuple(boxes)
