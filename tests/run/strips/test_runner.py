"""A network in strips gives what it gives whole, in the memory that was said."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.cases.common import assert_back, virtual
from tests.run.strips.running import Network, allowed, distance
from tests.run.strips.toys import KINDS, Causal, Toy
from tightfit.testing import oom_after

FEW = settings(max_examples=15) if settings().max_examples < 100 else settings()
ROOMS = st.floats(0.05, 1.2)


def _network(module: nn.Module, source: torch.Tensor, from_end: int) -> Network:
    return Network.of(module.eval().requires_grad_(False), module, source, from_end=from_end)


def _check(network: Network, source: torch.Tensor, share: float, *, on_card: bool) -> None:
    """In a share of what the whole takes."""
    full = network.laying.within(2**30, given_on_card=on_card)
    assert full is not None
    made = network.run(source, int(full.card_bytes * share), on_card=on_card)
    assume(made is not None)
    assert made is not None
    whole = network.whole(source)
    assert made.value.shape == whole.shape
    assert made.value.dtype == whole.dtype
    assert made.value.device.type == "cpu"
    assert distance(made.value, whole) <= 1e-5
    assert made.peak <= allowed(made.layout)


@FEW
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=7),
    st.integers(0, 10**6),
    st.tuples(st.integers(1, 2), st.integers(8, 40), st.integers(8, 40)),
    ROOMS,
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_a_network_in_strips_gives_what_it_gives_whole(
    kinds: list[str],
    seed: int,
    sizes: tuple[int, int, int],
    share: float,
    on_card: bool,
    from_end: int,
) -> None:
    """Any layers, any sizes, any room, cut along either axis, from the card or from the host."""
    torch.manual_seed(seed)
    module, source = Toy(kinds, seed), torch.randn(sizes[0], 3, *sizes[1:])
    _check(_network(module, source, from_end), source, share, on_card=on_card)


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_in_strips_gives_what_it_gives_whole(kind: str) -> None:
    """Between two convolutions, in a few strips."""
    torch.manual_seed(1)
    module, source = Toy([kind, "conv"], 1), torch.randn(1, 3, 29, 22)
    for from_end in (1, 2):
        network = _network(module, source, from_end)
        made = network.run(source, network.laying.within(2**30).card_bytes // 3)  # type: ignore[union-attr]
        if made is not None:
            assert made.layout.most_strips > 1
            assert distance(made.value, network.whole(source)) <= 1e-5


@pytest.mark.parametrize("from_end", [1, 2])
@pytest.mark.parametrize("part", [1, 3, 5])
def test_t15_a_causal_clip_in_strips_carries_its_cache(from_end: int, part: int) -> None:
    """Time stays inside of a strip: the clip is that of the whole run, to the bit but for
    rounding that a size brings."""
    torch.manual_seed(2)
    module, source = Causal(3), torch.randn(1, 3, 4, 19, 17)
    network = _network(module, source, from_end)
    full = network.laying.within(2**30)
    assert full is not None
    made = network.run(source, max(full.card_bytes // part, network.laying.least() or 0))
    assert made is not None
    assert distance(made.value, network.whole(source)) <= 1e-6
    assert part == 1 or made.layout.most_strips > 1
    assert not network.program.gathered


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_t07_the_norm_of_a_ramp_in_strips_is_that_of_the_whole(offset: float) -> None:
    """No strip has a level of its own, and none is seen in the result."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 1))
    ramp = torch.linspace(0, 1, 96).view(1, 1, 96, 1).expand(1, 3, 96, 40).contiguous() + offset
    network = _network(module, ramp, 2)
    whole = network.whole(ramp).double()
    exact = module.double()(ramp.double())
    module.float()
    network = _network(module, ramp, 2)
    full = network.laying.within(2**30)
    assert full is not None
    made = network.run(ramp, full.card_bytes // 3)
    assert made is not None
    assert made.layout.most_strips > 2
    assert distance(made.value, exact) <= max(1e-5, 1.1 * distance(whole, exact))
    steps = (made.value.double() - exact).diff(dim=2).abs().max()
    assert steps <= 1e-4 * max(1.0, offset)


def _small() -> tuple[Network, torch.Tensor]:
    torch.manual_seed(4)
    module, source = Toy(["norm", "skip", "up", "conv"], 3), torch.randn(1, 3, 24, 20)
    return _network(module, source, 2), source


def _room(network: Network) -> int:
    full = network.laying.within(2**30)
    assert full is not None
    return full.card_bytes // 3


def test_whoever_stops_it_leaves_nothing_on_the_card() -> None:
    """At any strip: what was there before is there after, and the next run is right."""
    network, source = _small()
    card, room = virtual("1GiB"), _room(network)
    made = network.run(source, room, card=card)
    assert made is not None
    total = sum(len(laid.strips) for laid in made.layout.stages)
    for stop in range(0, total, 2):
        left = iter(range(stop))

        def before_strip(left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            network.run(source, room, card=card, before_strip=before_strip)
        assert_back(card)
    again = network.run(source, room, card=card)
    assert again is not None
    assert torch.equal(again.value, made.value)


def test_a_card_that_is_full_at_any_allocation_is_left_as_it_was() -> None:
    """The error goes on to whoever called; what was on its way has arrived or is forgotten."""
    network, source = _small()
    card, room = virtual("1GiB"), _room(network)
    for after in range(0, 200, 9):
        try:
            with oom_after(card, after):
                network.run(source, room, card=card)
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None
        assert_back(card)
    made = network.run(source, room, card=card)
    assert made is not None
    assert distance(made.value, network.whole(source)) <= 1e-5


class _Ways(nn.Module):
    """Keeps something large and something small at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.large(x)
        small = self.norm(self.small(functional.avg_pool2d(h, 8)))
        return functional.interpolate(small, scale_factor=8.0) + self.norm(h)


def test_no_strip_is_without_rows_of_what_it_keeps() -> None:
    """However little room there is."""
    module, source = _Ways(), torch.randn(1, 3, 64, 48)
    network = _network(module, source, 2)
    least = network.laying.least()
    assert least is not None
    made = network.run(source, least)
    assert made is not None
    assert made.layout.most_strips > 4
    assert all(
        b < e for s in made.layout.stages for strip in s.strips for b, e in strip.own.values()
    )
    assert distance(made.value, network.whole(source)) <= 1e-5
