"""What a cut does to a tile, measured by running the network on small pieces of one axis.

Two things are measured, on the host and in float32, so that no card and no rounding of half
precision comes into it. A NaN in one unit spreads to everything that depends on it, however little
(`0 × NaN` is NaN): where it stops, the network's reach ends. And a piece that is cut is compared
with the whole, which also finds what a beginning is treated like, and how far it is felt.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.place import placed
from tightfit.plan.tiles import Edge, Scale, Span, Track
from tightfit.run.ladder import Keepsakes
from tightfit.run.vae import Direction, Vae
from tightfit.weigh import weights

Call = Callable[[torch.Tensor], torch.Tensor]

LENGTHS = (16, 48)
"""Units along the axis that is measured; what reaches half of the last counts as unbounded."""
THICK = (2, 8, 32)
"""Units along the other axes; networks that mirror their edges, or pad none, refuse thin ones."""
_ROUNDING = 1e-5
_FELT = 2.0
"""A cut is felt while the difference is so many times what it is far away from the cut."""


def vae_edges(vae: Vae, direction: Direction, *, cut: Sequence[bool]) -> tuple[Edge | None, ...]:
    """The edge of each axis of `vae` that is `cut`, in `direction`; None where it cannot be told.

    A halo among the traits is taken at its word. Else each axis is measured when it is first cut,
    and remembered for the module, whose weights may lie anywhere but on the meta device.
    """
    traits = vae.traits
    tracks = tracks_of(vae, direction, (1,) * traits.axes)
    if traits.halo is not None:
        reach = (traits.halo * track.write.ratio for track in tracks)
        return tuple(Edge(each, each) for each in reach)
    known = _known.setdefault(vae.module, {})
    missing = [at for at, is_cut in enumerate(cut) if is_cut and (direction, at) not in known]
    if missing and not any(held.tensor.device.type == "meta" for held in weights(vae.module)):
        channels = traits.channels if direction == "encode" else traits.latent_channels
        probe = Probe(vae.call(direction), channels, tracks, lead=traits.lead)
        with on_the_host(vae):
            known.update({(direction, at): probe.edge(at) for at in missing})
    return tuple(known.get((direction, at)) for at in range(traits.axes))


def tracks_of(vae: Vae, direction: Direction, latent_sizes: Sequence[int]) -> tuple[Track, ...]:
    """How the axes of a source lead to those of a result, for a latent of these sizes."""
    one = Scale(1)
    return tuple(
        Track(axis.length, axis.scale, one)
        if direction == "encode"
        else Track(axis.length, one, axis.scale)
        for axis in vae.traits.latent_axes(tuple(latent_sizes))
    )


@dataclass(frozen=True)
class Probe:
    """Measures cuts of a network on the host, axis by axis.

    Attributes:
        call: a source [1,`channels`,…] on the host to a result.
        channels: of the source.
        tracks: of the axes, whose lengths do not matter.
        lead: the first axis is time, where one unit is enough of it to look at the others.
    """

    call: Call
    channels: int
    tracks: tuple[Track, ...]
    lead: bool = False

    def edge(self, at: int) -> Edge | None:
        """The edge of the axis `at`; None where the network does not run on pieces so small."""
        for thick in THICK:
            with suppress(Exception):  # whatever it is: with its real input it will say so itself
                return self._edge(at, thick)
        return None

    def _edge(self, at: int, thick: int) -> Edge | None:
        length = LENGTHS[0]
        reach = self._spread(at, length, thick)
        for length in LENGTHS[1:]:
            if reach is None or reach.bounded:
                break
            reach = self._spread(at, length, thick)
        if reach is None:
            return None
        return self._felt(at, self._noise(at, length, thick), length, reach)

    def _spread(self, at: int, length: int, thick: int) -> Edge | None:
        """How far a NaN in the unit in the middle spreads; None if it is swallowed."""
        source = self._noise(at, length, thick)
        track, middle = self.tracks[at], length // 2
        spoilt = track.read.of(Span(middle, middle + 1))
        extra = min(0, track.read.extra)
        start, stop = spoilt.start + extra, max(spoilt.stop, spoilt.start + extra + 1)
        source.narrow(at + 2, start, stop - start).fill_(torch.nan)
        result = self._run(source)
        others = [dim for dim in range(result.dim()) if dim != at + 2]
        rows = torch.isnan(result).any(dim=others[0], keepdim=True)
        for dim in others[1:]:
            rows = rows.any(dim=dim, keepdim=True)
        bad = rows.flatten().nonzero().flatten().tolist()
        if not bad:
            return None
        write = track.write
        head = max(0, bad[-1] + 1 - write.ratio * (middle + 1))
        tail = max(0, write.ratio * middle + write.extra - bad[0])
        total = result.shape[at + 2]
        return Edge(head, tail, bounded=bad[-1] + 1 < total and bad[0] > 0)

    def _felt(self, at: int, source: torch.Tensor, length: int, reach: Edge) -> Edge:
        """How far a cut in the middle is felt on either side of it, at least `reach`."""
        track, middle = self.tracks[at], length // 2
        whole = self._run(source)
        level = _rms(whole)
        profiles = []
        for kept in (Span(middle, length), Span(0, middle)):
            read, write = track.read.of(kept), track.write.of(kept)
            piece = self._run(source.narrow(at + 2, read.start, len(read)))
            if piece.shape[at + 2] != len(write):
                raise ValueError("a piece of another length than its scale says")
            off = piece - whole.narrow(at + 2, write.start, len(write))
            profile = off.movedim(at + 2, 0).flatten(1).square().mean(dim=1).sqrt() / level
            profiles.append((profile if kept.start else profile.flip(0)).tolist())
        head, tail = (_last_above(profile, _ROUNDING) for profile in profiles)
        half = len(profiles[0]) // 2
        if reach.bounded and head <= half and tail <= half:
            return Edge(max(head, reach.head), max(tail, reach.tail))
        head, tail = (_felt(profile, track.write.ratio) for profile in profiles)
        return Edge(head, tail, bounded=False)

    def _noise(self, at: int, length: int, thick: int) -> torch.Tensor:
        sizes = [
            track.read.length(length if axis == at else 1 if self.lead and axis == 0 else thick)
            for axis, track in enumerate(self.tracks)
        ]
        generator = torch.Generator().manual_seed(0)
        return torch.randn((1, self.channels, *sizes), generator=generator)

    def _run(self, source: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.call(source.contiguous()).float()


_known: weakref.WeakKeyDictionary[nn.Module, dict[tuple[Direction, int], Edge | None]] = (
    weakref.WeakKeyDictionary()
)


@contextmanager
def on_the_host(vae: Vae) -> Iterator[None]:
    """While inside, the weights are copies on the host in float32, and nothing is left behind."""
    keepsakes = Keepsakes(vae.module, device=torch.device("cpu"))
    try:
        with placed(vae.module, "cpu", dtype=torch.float32):
            yield
    finally:
        with suppress(Exception):  # its own way may fail; by name never does
            vae.reset()
        keepsakes.drop()


def _rms(values: torch.Tensor) -> float:
    return max(float(values.square().mean().sqrt()), torch.finfo(torch.float32).tiny)


def _last_above(profile: Sequence[float], floor: float) -> int:
    """How many positions there are up to the last one above `floor`."""
    return max((at + 1 for at, value in enumerate(profile) if not value <= floor), default=0)


def _felt(profile: Sequence[float], ratio: int) -> int:
    """How many positions from a cut on the difference is above what it is far away from it."""
    units = [_mean(profile[at : at + ratio]) for at in range(0, len(profile), ratio)]
    floor = max(_ROUNDING, _FELT * _mean(units[len(units) // 2 :]))
    near = next((at for at, value in enumerate(units) if value <= floor), len(units))
    return near * ratio


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
