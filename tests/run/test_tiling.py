"""Running tile by tile: what is read, written and weighed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.card import open_card
from tightfit.plan.tiles import Axis, Edge, Scale, Track
from tightfit.plan.tilesize import Tile, TileWish, overlapped
from tightfit.run.edges import tracks_of, vae_edges
from tightfit.run.pieces import Pieces
from tightfit.run.tiling import lay_grid, run_tiled, run_whole
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.testing import toy_vae

HOST = torch.device("cpu")


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 30),
    st.sampled_from(["encode", "decode"]),
    st.one_of(st.none(), st.builds(Edge, st.integers(0, 40), st.integers(0, 40))),
    st.booleans(),
)
def test_a_grid_covers_both_sides_and_its_weights_add_up_to_one(
    frames: int, height: int, size: int, direction: Direction, edge: Edge | None, onward: bool
) -> None:
    """Reads cover the source, writes the result; on a leading axis as on a plain one."""
    axes = (Axis(frames, 4, lead=True), Axis(height, 8))
    sizes = (max(2, min(size, frames)), size)
    tile = Tile(
        tuple(min(s, a.length) for s, a in zip(sizes, axes, strict=True)),
        (min(1, sizes[0] - 1), size // 4),
    )
    one = Scale(1)
    tracks = [
        Track(a.length, a.scale, one) if direction == "encode" else Track(a.length, one, a.scale)
        for a in axes
    ]
    grid = lay_grid(tracks, tile, (edge, edge), time=True, onward=onward)
    for axis, reads, writes, weights, length in zip(
        axes, grid.reads, grid.writes, grid.weights, grid.sizes, strict=True
    ):
        source = axis.samples if direction == "encode" else axis.length
        assert length == (axis.length if direction == "encode" else axis.samples)
        assert (reads[0].start, reads[-1].stop) == (0, source)
        assert (writes[0].start, writes[-1].stop) == (0, length)
        totals = [0.0] * length
        for span, row in zip(writes, weights, strict=True):
            for at, weight in enumerate(row, start=span.start):
                totals[at] += weight
        assert totals == pytest.approx([1.0] * length, abs=1e-9)
    assert grid.count == len(grid.reads[0]) * len(grid.reads[1])


def tiled(vae: Vae, direction: Direction, source: torch.Tensor, tile: Tile) -> torch.Tensor:
    sizes = tuple(source.shape[2:])
    axes = vae.traits.latent_axes(
        vae.traits.latent_sizes(sizes) if direction == "encode" else sizes
    )
    tracks = tracks_of(vae, direction, [axis.length for axis in axes])
    edges = vae_edges(vae, direction, cut=[True] * len(axes))
    return run_tiled(
        Pieces(vae.call(direction), HOST, vae.traits.name),
        source,
        grid=lay_grid(tracks, tile, edges),
        channels=vae.traits.latent_channels if direction == "encode" else vae.traits.channels,
    )


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_an_overlap_of_just_what_cuts_need_is_exact(direction: Direction) -> None:
    """V2 reaches two latent units: an overlap of four hides the edges, one of two does not."""
    vae = toy_vae("V2", width=8)
    off = []
    for overlap in (4, 2):  # two tiles of 10 that overlap by just so much
        latent = torch.rand(1, 4, 20 - overlap, 20 - overlap)
        source = latent if direction == "decode" else vae.decode(latent)
        value = tiled(vae, direction, source, Tile((10, 10), (overlap, overlap)))
        off.append((value - vae.call(direction)(source)).abs().max().item())
    assert off[0] <= 1e-5
    assert off[1] > 1e-4


def test_a_result_of_the_wrong_shape_names_both_shapes() -> None:
    """Traits that do not fit the model are found at the first call."""
    vae = toy_vae("V2")
    wrong = Vae(vae.module, Traits("Wrong", 16), vae.encode, vae.decode)
    with pytest.raises(RuntimeError, match=r"Wrong gave \(1, 3, 64, 64\).*\(1, 3, 128, 128\)"):
        tiled(wrong, "decode", torch.rand(1, 4, 8, 8), Tile((8, 8), (0, 0)))


def test_sums_are_kept_in_float32_and_the_result_has_the_models_dtype() -> None:
    """Halves are blended without losing bits."""
    vae = toy_vae("V2", width=4)

    def decode(z: torch.Tensor) -> torch.Tensor:
        return vae.decode(z.float()).half()

    half = replace(vae, decode=decode)
    source = torch.rand(1, 4, 12, 20).half()
    result = tiled(half, "decode", source, Tile((12, 12), (0, 6)))
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, decode(source), rtol=0, atol=2e-3)


def test_the_source_and_the_model_are_left_alone() -> None:
    """Results share nothing with their source, not even where a model gives back its input."""
    source = torch.rand(2, 1, 4, 4)
    pieces = Pieces(lambda x: x, HOST, "Same")
    result = run_whole(pieces, source, batch=2, sizes=(4, 4))
    assert torch.equal(result, source)
    assert result.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def test_every_piece_arrives_contiguous_and_without_history() -> None:
    """As a dry run assumes it."""
    seen: list[bool] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_contiguous() and not x.requires_grad and not torch.is_grad_enabled())
        return x

    traits = Traits("Same", 1, channels=1, latent_channels=1)
    vae = Vae(torch.nn.Identity(), traits, call, call)
    source = torch.rand(1, 1, 20, 20, requires_grad=True)
    with torch.enable_grad():
        tiled(vae, "decode", source, Tile((8, 8), (2, 2)))
    assert seen
    assert all(seen)


def test_pieces_are_read_from_a_card_or_from_the_host_alike() -> None:
    """The same bits wherever the source lies."""
    card = open_card("virtual:64MiB")
    source = torch.rand(1, 1, 20, 20)
    tile = overlapped((8, 8), TileWish(), (Axis(20, 1), Axis(20, 1)))
    grid = lay_grid([Track(20, Scale(1), Scale(1))] * 2, tile, (None, None))
    results = [
        run_tiled(Pieces(lambda x: x * 2, card.device, "Twice"), place, grid=grid, channels=1)
        for place in (source, source.to(card.device))
    ]
    assert torch.equal(*results)
