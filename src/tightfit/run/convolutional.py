"""Any network that is made of convolutions, run in tiles that give the whole bit by bit.

Nothing is known of such a network beforehand: what its shapes mean is measured as well, on the
host, on small pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.plan.tiles import Axis, Edge, Scale, Track
from tightfit.plan.tilesize import Tile, wished_tile
from tightfit.run.cutting import Cutting
from tightfit.run.edges import THICK, Probe, on_the_host
from tightfit.run.estimate import Estimator
from tightfit.run.job import Job
from tightfit.run.rungs import VaeRungs
from tightfit.run.vae import Traits, Vae
from tightfit.weigh import weights

_STEPS = (1, 2, 4, 8, 16, 32, 64)
"""Positions in which a network may be cut: those that its strides leave."""
_LONG = 24
_NAMES = {1: ("length",), 2: ("height", "width"), 3: ("frames", "height", "width")}


@dataclass(frozen=True)
class Shape:
    """What the shapes of a network mean, [B,C,…] to [B,C',…], and what cuts do to it.

    Attributes:
        step: tiles begin and end at multiples of so many positions of the source.
        channels: of its results.
        writes: per axis, from steps to positions of the result.
        edges: per axis.
    """

    step: int
    channels: int
    writes: tuple[Scale, ...]
    edges: tuple[Edge, ...]

    @property
    def overlaps(self) -> tuple[int, ...]:
        """Steps that neighbouring tiles have to share, per axis."""
        return tuple(e.overlap(write) for e, write in zip(self.edges, self.writes, strict=True))

    @property
    def halo(self) -> int:
        """Positions of the source that a tile needs on each side, beyond those it is right for."""
        return -(-max(self.overlaps) * self.step // 2)


def shape_of(module: nn.Module, *, channels: int, axes: int) -> Shape:
    """Measure `module`, which takes [B,`channels`,…] with so many `axes`, on the host.

    Raises `UsageError` where its results cannot be put together from tiles: it takes no input of
    that kind, or every position depends on all others.
    """
    name = type(module).__name__
    vae = as_vae(module, Traits(name, 1, axes=axes, channels=1, latent_channels=channels))
    runs = False
    with on_the_host(vae):
        for step in _STEPS:
            told = _scales(vae.decode, channels, axes, step)
            if told is None:
                continue
            runs = True
            made, writes = told
            tracks = tuple(Track(1, Scale(step), write) for write in writes)
            probe = Probe(vae.decode, channels, tracks)
            edges = [edge for at in range(axes) if (edge := probe.edge(at)) is not None]
            if len(edges) == axes and all(edge.bounded for edge in edges):
                return Shape(step, made, writes, tuple(edges))
    if runs:
        raise UsageError(
            f"`{name}` cannot be run in tiles that give the whole: every position of its result "
            "depends on all of its input, as with norms over the picture or attention."
        )
    raise UsageError(
        f"`{name}` cannot be run in tiles: it takes no small pieces [1,{channels},…] of {axes} "
        f"axes, or the size of its result does not follow theirs."
    )


def as_vae(module: nn.Module, traits: Traits) -> Vae:
    """The module as something that decodes."""
    dtypes = {h.tensor.dtype for h in weights(module) if h.tensor.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return Vae(module, traits, module, module, dtype=dtype)


def _scales(
    call: Callable[[torch.Tensor], torch.Tensor], channels: int, axes: int, step: int
) -> tuple[int, tuple[Scale, ...]] | None:
    """Channels of a result, and how long it is for a source of so many steps, axis by axis."""
    for thick in THICK:
        with suppress(Exception), torch.no_grad():  # too thin for it, or not in these steps
            writes = []
            for at in range(axes):
                lengths = []
                for long in (_LONG, _LONG + 1):
                    sizes = [step * (long if axis == at else thick) for axis in range(axes)]
                    result = call(torch.zeros((1, channels, *sizes)))
                    lengths.append(result.shape[at + 2])
                ratio = lengths[1] - lengths[0]
                writes.append(Scale(ratio, lengths[0] - ratio * _LONG))
            if all(write.ratio > 0 for write in writes):
                return result.shape[1], tuple(writes)
    return None


@dataclass
class ConvolutionalJob(Job):
    """A run of any module; its `vae` is made by `as_vae` from what `shape` says."""

    shape: Shape | None = None

    def rungs(
        self,
        loaded: torch.Tensor,
        host: torch.Tensor | None = None,
        *,
        estimator: Estimator | None = None,
        adjusted: list[str] | None = None,
    ) -> VaeRungs:
        """The ways to run it, all of them exact."""
        rungs = super().rungs(loaded, host, estimator=estimator, adjusted=adjusted)
        own = {name: value for name, value in vars(rungs).items() if not name.startswith("_")}
        assert self.shape is not None
        return _Rungs(**own, shape=self.shape)


@dataclass(frozen=True)
class _Cutting(Cutting):
    """In steps of the source, as was measured."""

    measured: Shape

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Of the source, in steps."""
        step = self.measured.step
        return tuple(Axis(size // step, step) for size in self.shape[2:])

    @property
    def tracks(self) -> tuple[Track, ...]:
        """From the source to the result."""
        read = Scale(self.measured.step)
        axes = zip(self.axes, self.measured.writes, strict=True)
        return tuple(Track(axis.length, read, write) for axis, write in axes)

    def edges(self, sizes: tuple[int, ...]) -> tuple[Edge | None, ...]:
        """The same for tiles of any size."""
        del sizes
        return self.measured.edges


@dataclass
class _Rungs(VaeRungs):
    shape: Shape | None = None

    @property
    def cutting(self) -> Cutting:
        """Where tiles are cut."""
        assert self.shape is not None
        return _Cutting(self.vae, self.direction, tuple(self.source.shape), self.wish, self.shape)

    def _in_reach(
        self, tiles: tuple[tuple[int, ...], ...], room: Callable[[], int] | None
    ) -> Iterator[tuple[int, ...]]:
        """Without those too small to hold what their neighbours need of them."""
        cutting = self.cutting
        held = tuple(
            sizes for sizes in tiles if cutting.covers(cutting.tile(sizes), cutting.edges(sizes))
        )
        if held:
            yield from super()._in_reach(held, room)


def check_source(source: torch.Tensor, shape: Shape, job: Job) -> None:
    """Refuse a `source` or a wished tile that `shape` has no tiles for."""
    name = job.vae.traits.name
    for axis, size in zip(_NAMES[source.dim() - 2], source.shape[2:], strict=True):
        if size % shape.step:
            raise UsageError(f"`{name}` takes a {axis} of a multiple of {shape.step}, not {size}.")
    if job.request.wish.mode != "size":
        return
    axes = tuple(Axis(size // shape.step, shape.step) for size in source.shape[2:])
    tile, _ = wished_tile(job.request.wish, axes)
    wished = job.request.wish.overlap
    least = [overlap * shape.step for overlap in shape.overlaps]
    if wished is not None and wished < max(least):
        raise UsageError(
            f"overlap {wished} is below what tiles of `{name}` have to share, {max(least)}."
        )
    if any(_too_small(tile, axes, shape)):
        raise UsageError(
            f"tile {job.request.wish.width} is too small for `{name}`, whose tiles share "
            f"{max(least)}: use {max(least) * 4 // 3 + shape.step} or more."
        )


def _too_small(tile: Tile, axes: tuple[Axis, ...], shape: Shape) -> Iterator[bool]:
    for axis, size, overlap in zip(axes, tile.sizes, shape.overlaps, strict=True):
        yield size < axis.length and overlap > int(size * 0.75)
