"""How the work of a VAE is cut into tiles: where, with what overlap, and what that is called."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.plan.tiles import Axis, Edge, Track
from tightfit.plan.tilesize import FLOOR, Need, Tile, TileWish, overlapped
from tightfit.run.edges import tracks_of, vae_edges
from tightfit.run.vae import Direction, Vae


@dataclass(frozen=True)
class Cutting:
    """Of one source; sizes of tiles are latent units along `axes`.

    Attributes:
        vae, direction: what runs.
        shape: of the source, [B,C,…].
        wish: what the user said about tiles.
    """

    vae: Vae
    direction: Direction
    shape: tuple[int, ...]
    wish: TileWish

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The latent's axes behind batch and channels."""
        traits = self.vae.traits
        sizes = self.shape[2:]
        return traits.latent_axes(
            traits.latent_sizes(sizes) if self.direction == "encode" else sizes
        )

    @property
    def tracks(self) -> tuple[Track, ...]:
        """How the axes of the source lead to those of the result."""
        return tracks_of(self.vae, self.direction, [axis.length for axis in self.axes])

    def read(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape [1,C,…] of what a tile of these latent sizes reads.

        Where it goes on in time, one latent frame more: the first of a clip is another matter.
        """
        if self.goes_on(sizes):
            sizes = (sizes[0] + 1, *sizes[1:])
        reads = zip(self.tracks, sizes, strict=True)
        sizes = tuple(track.read.length(size) for track, size in reads)
        return (1, self.shape[1], *sizes)

    def edges(self, sizes: tuple[int, ...]) -> tuple[Edge | None, ...]:
        """What cutting into tiles of `sizes` does, axis by axis; those that stay whole aside."""
        cut = [size < axis.length for size, axis in zip(sizes, self.axes, strict=True)]
        if self.goes_on(sizes):
            cut[0] = False
        return vae_edges(self.vae, self.direction, cut=cut)

    def needs(self, *, time: bool) -> tuple[Need | None, ...]:
        """The overlaps that tiles need: of all axes that may be cut; of `time` where it may."""
        least = [1 if len(self.axes) == 1 else FLOOR] * len(self.axes)
        if len(self.axes) == 3:
            least[0] = 1 if time else self.axes[0].length
        edges = self.edges(tuple(least))
        return tuple(
            None if edge is None else Need(edge.overlap(track.write), edge.bounded)
            for edge, track in zip(edges, self.tracks, strict=True)
        )

    def goes_on(self, sizes: tuple[int, ...]) -> bool:
        """Whether time is cut and each piece goes on where the last one ended."""
        return len(sizes) == 3 and sizes[0] < self.axes[0].length and self.vae.onward is not None

    def covers(self, tile: Tile, edges: tuple[Edge | None, ...]) -> bool:
        """Whether every overlap is wide enough to hide what a tile's edge does."""
        ways = zip(self.tracks, tile.sizes, tile.overlaps, edges, strict=True)
        return all(
            size >= track.length
            or (at == 0 and self.goes_on(tile.sizes))
            or (edge is not None and edge.bounded and overlap >= edge.overlap(track.write))
            for at, (track, size, overlap, edge) in enumerate(ways)
        )

    def tile(self, sizes: tuple[int, ...]) -> Tile:
        """A tile of these sizes, with its overlaps."""
        time = len(sizes) == 3 and sizes[0] < self.axes[0].length and not self.goes_on(sizes)
        tile = overlapped(sizes, self.wish, self.axes, needs=self.needs(time=time))
        return Tile(sizes, (0, *tile.overlaps[1:])) if self.goes_on(sizes) else tile

    def samples(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes in latent units as samples: pixels, and frames where time is cut."""
        samples = tuple(
            (size - axis.lead) * axis.ratio + axis.lead
            for size, axis in zip(sizes, self.axes, strict=True)
        )
        time_is_whole = len(sizes) == 3 and sizes[0] == self.axes[0].length
        return samples[1:] if time_is_whole else samples

    def name(self, sizes: tuple[int, ...]) -> str:
        """``128x224``: in samples, as reports say it."""
        return "x".join(map(str, self.samples(sizes)))
