"""What is said about the error of tiles holds for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.clips import smooth
from tightfit.plan.tiles import Edge
from tightfit.plan.tilesize import Tile
from tightfit.run.edges import tracks_of, vae_edges
from tightfit.run.pieces import Pieces
from tightfit.run.tile_error import SIDE, tile_error
from tightfit.run.tiling import lay_grid, run_tiled, run_whole
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.testing import toy_vae, wrap_toy

HOST = torch.device("cpu")
LATENT = (40, 56)
TILE = Tile((20, 20), (5, 5))


def compared(
    vae: Vae, direction: Direction, source: torch.Tensor, *, latent: tuple[int, ...], tile: Tile
) -> tuple[float | None, float]:
    """The bound that is stated, and the real relative rms."""
    tracks = tracks_of(vae, direction, latent)
    cut = [size < length for size, length in zip(tile.sizes, latent, strict=True)]
    edges = vae_edges(vae, direction, cut=cut)
    pieces = Pieces(vae.call(direction), HOST, vae.traits.name)
    traits = vae.traits
    channels = traits.latent_channels if direction == "encode" else traits.channels
    time = traits.axes == 3
    bound = tile_error(
        pieces, source, tracks=tracks, tile=tile, edges=edges, time=time, channels=channels
    )
    whole = run_whole(pieces, source, batch=1, sizes=None)
    grid = lay_grid(tracks, tile, edges, time=time)
    off = run_tiled(pieces, source, grid=grid, channels=channels) - whole
    return bound, float(off.square().mean().sqrt() / whole.square().mean().sqrt())


@pytest.mark.parametrize("kind", ["noise", "ramp", "waves"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_tiles_stay_within_what_is_stated(kind: str, seed: int, direction: Direction) -> None:
    """Of the toy with a norm and attention; and what is stated is no wild guess."""
    vae = toy_vae("V2N", width=8, seed=seed)
    unit, channels = (8, 3) if direction == "encode" else (1, 4)
    shape = (1, channels, LATENT[0] * unit, LATENT[1] * unit)
    generator = torch.Generator().manual_seed(seed)
    source = {
        "noise": torch.randn(shape, generator=generator),
        "ramp": torch.linspace(-1, 1, shape[-1]).expand(shape).contiguous(),
        "waves": smooth(*shape, seed=seed) * 2 - 1,
    }[kind]
    bound, real = compared(vae, direction, source, latent=LATENT, tile=TILE)
    assert bound is not None
    assert real <= bound <= 60 * real


def test_a_network_without_a_reach_has_an_error_of_rounding() -> None:
    """Nothing is invented where there is nothing."""
    vae = toy_vae("VA", width=4)
    source = torch.randn(1, 64, 40)
    bound, real = compared(vae, "decode", source, latent=(40,), tile=Tile((20,), (0,)))
    assert bound is not None
    assert max(bound, real) <= 1e-6


def test_the_pieces_need_no_more_than_a_tile() -> None:
    """None is larger than the tile, nor than what is needed, on any axis."""
    seen: list[tuple[int, ...]] = []
    vae = toy_vae("V2N", width=4)

    def call(z: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(z.shape))
        return vae.decode(z)

    tracks = tracks_of(vae, "decode", (200, 200))
    source = torch.randn(2, 4, 200, 200)
    for tile in (Tile((20, 60), (5, 15)), Tile((9, 200), (2, 0))):
        seen.clear()
        bound = tile_error(
            Pieces(call, HOST, "V2N"),
            source,
            tracks=tracks,
            tile=tile,
            edges=(None, None),
            time=False,
            channels=3,
        )
        assert bound is not None
        assert bound > 0
        for one, _, *sizes in seen:
            assert one == 1
            assert all(a <= min(b, SIDE) for a, b in zip(sizes, tile.sizes, strict=True))


def test_a_clip_is_measured_on_its_first_frames() -> None:
    """In space; time is whole."""
    vae, source = toy_vae("V3", width=4), torch.randn(1, 16, 6, 24, 24)
    latent, tile = (6, 24, 24), Tile((6, 12, 12), (0, 0, 0))
    bound, real = compared(vae, "decode", source, latent=latent, tile=tile)
    assert bound is not None
    assert 0 < real <= bound


def test_what_is_not_finite_has_no_bound() -> None:
    """Not a bound of zero."""

    class Overflow(nn.Module):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0

        decode = encode

    vae = wrap_toy(Overflow(), Traits("O", 1, channels=1, latent_channels=1))
    bound = tile_error(
        Pieces(vae.decode, HOST, "O"),
        torch.rand(1, 1, 40, 40),
        tracks=tracks_of(vae, "decode", (40, 40)),
        tile=Tile((20, 20), (5, 5)),
        edges=(Edge(0, 0), Edge(0, 0)),
        time=False,
        channels=1,
    )
    assert bound is None
