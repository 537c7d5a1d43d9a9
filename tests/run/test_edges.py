"""What cuts do to tiles is measured, and what is measured holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tightfit.place import placed
from tightfit.plan.tiles import Edge, Scale, Track
from tightfit.run.edges import Probe, vae_edges
from tightfit.run.vae import Direction, Traits
from tightfit.testing import toy_vae, wrap_toy

SAME = Scale(1)


def edge(module: nn.Module, *, write: Scale = SAME, read: Scale = SAME) -> Edge | None:
    """Of the one axis of `module`, [1,2,L] to [1,2,L']."""
    module.eval().requires_grad_(False)
    return Probe(module, 2, (Track(1, read, write),)).edge(0)


def conv(kernel: int, **more: int) -> nn.Conv1d:
    return nn.Conv1d(2, 2, kernel, **more)


@pytest.mark.parametrize(
    ("name", "direction", "expected"),
    [
        ("V2", "encode", 2),
        ("V2", "decode", 16),
        ("V2P", "encode", 2),
        ("V2P", "decode", 32),
        ("VA", "encode", 0),
        ("VA", "decode", 0),
    ],
)
def test_edges_of_toys_are_those_of_their_layers(
    name: str, direction: Direction, expected: int
) -> None:
    """V2 decodes by five 3x3 layers, of which two work at full size: 8 + 4 + 2 + 1 + 1 pixels."""
    vae = toy_vae(name, width=4)
    edges = vae_edges(vae, direction, cut=(True,) * vae.traits.axes)
    assert edges == (Edge(expected, expected),) * vae.traits.axes


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_a_causal_clip_has_a_head_and_no_tail(direction: Direction) -> None:
    """V3: what comes later changes nothing, and one position after a cut is a wrong beginning."""
    vae = toy_vae("V3", width=4)
    assert vae_edges(vae, direction, cut=(True, False, False))[0] == Edge(1, 0)


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_a_norm_over_everything_is_unbounded(direction: Direction) -> None:
    """And its cuts are felt for a few units alone: the rest is the norm's."""
    vae = toy_vae("V2N", width=8)
    for each in vae_edges(vae, direction, cut=(True, True)):
        assert each is not None
        assert not each.bounded
        assert max(each.head, each.tail) <= 6 * (1 if direction == "encode" else 8)


def test_a_reach_that_decays_below_rounding_is_still_seen() -> None:
    """Weights of one millionth hide in float32; a NaN shows them."""
    layers = nn.Sequential(*(conv(3, padding=1) for _ in range(6)))
    with torch.no_grad():
        for layer in layers:
            layer.weight[..., 0] *= 1e-6
            layer.weight[..., 2] *= 1e-6
    assert edge(layers) == Edge(6, 6)


def test_a_zero_weight_counts_as_reach() -> None:
    """Another set of weights for the same network may have none."""
    layer = conv(5, padding=2)
    nn.init.zeros_(layer.weight)
    assert edge(layer) == Edge(2, 2)


def test_a_network_that_pads_nothing_has_no_edge() -> None:
    """Its results are smaller, and right up to their ends: tiles have to share what is missing."""
    found = edge(conv(5), write=Scale(1, -4))
    assert found == Edge(0, 0)
    assert found.overlap(Scale(1, -4)) == 4


def test_an_upscaler_is_measured_in_pixels_of_its_result() -> None:
    """Two-fold, then a layer at full size."""
    module = nn.Sequential(conv(3, padding=1), nn.Upsample(scale_factor=2), conv(3, padding=1))
    assert edge(module, write=Scale(2)) == Edge(3, 3)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 3, 5]), st.integers(1, 3)), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_beyond_the_edge_a_piece_is_the_whole(layers: list[tuple[int, int]], seed: int) -> None:
    """Whatever kernels and dilations, and not a unit sooner than they say."""
    torch.manual_seed(seed)
    module = nn.Sequential(*(conv(k, dilation=d, padding=d * (k - 1) // 2) for k, d in layers))
    found = edge(module)
    reach = sum(d * (k - 1) // 2 for k, d in layers)
    assert found == Edge(reach, reach)
    x = torch.randn(1, 2, 120)
    whole, piece = module(x), module(x[..., 60:])
    torch.testing.assert_close(piece[..., reach:], whole[..., 60 + reach :], rtol=0, atol=1e-5)


class Beginning(nn.Module):
    """Treats what it is given first by a rule of its own, three units on; nothing depends on it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.arange(x.shape[-1]) < 3
        return torch.where(first, x * 2, x)


def test_what_a_beginning_is_treated_like_is_seen_too() -> None:
    """No value reaches from one unit to the next, and yet a cut changes three."""
    assert edge(Beginning()) == Edge(3, 0)


def test_what_swallows_a_nan_or_breaks_on_small_pieces_is_unknown() -> None:
    """None, and never a guess."""

    class Clean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nan_to_num(x)

    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"too small: {x.shape}")

    assert edge(Clean()) is None
    assert edge(Large()) is None


def test_edges_are_measured_once_for_a_module_and_only_where_it_is_cut() -> None:
    """A second `Vae` around the same module asks nothing anew."""
    vae, calls = toy_vae("V2", width=4), []

    def decode(z: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(z.shape))
        return vae.decode(z)

    counting = replace(vae, decode=decode)
    assert vae_edges(counting, "decode", cut=(False, True)) == (None, Edge(16, 16))
    first = len(calls)
    assert first > 0
    assert vae_edges(replace(counting), "decode", cut=(False, True)) == (None, Edge(16, 16))
    assert len(calls) == first
    assert max(shape[2] for shape in calls) <= 8, "the axis that is not cut stays thin"


def test_a_halo_that_somebody_knows_is_taken_at_its_word() -> None:
    """Nothing is run."""

    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    vae = replace(toy_vae("V2"), decode=never, traits=Traits("V2", 8, halo=3))
    assert vae_edges(vae, "decode", cut=(True, True)) == (Edge(24, 24),) * 2


def test_half_precision_and_weights_elsewhere_change_nothing() -> None:
    """It is measured on the host in float32; the module is as it was, and keeps nothing."""
    vae = toy_vae("V3", width=4)
    vae.module.half()
    before = dict(vae.module.named_parameters())
    assert vae_edges(vae, "decode", cut=(False, True, True))[1:] == (Edge(8, 8),) * 2
    after = dict(vae.module.named_parameters())
    assert all(after[name] is weight for name, weight in before.items())
    assert all(kept is None for kept in vae.module._feat)


def test_an_outline_without_values_is_unknown() -> None:
    """On the meta device there is nothing to measure, and nothing is remembered."""
    vae = toy_vae("V2", width=4)
    with placed(vae.module, "meta"):
        assert vae_edges(vae, "decode", cut=(True, True)) == (None, None)
    assert vae_edges(vae, "decode", cut=(True, True)) == (Edge(16, 16),) * 2


def test_a_network_that_is_not_as_its_traits_say_is_unknown() -> None:
    """Pieces of another length than was promised tell nothing."""
    toy = toy_vae("V2", width=4)
    assert vae_edges(wrap_toy(toy.module, Traits("W", 4)), "decode", cut=(True, True)) == (
        None,
        None,
    )
