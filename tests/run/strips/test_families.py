"""VAEs of every family in strips: what they give whole, in a part of the memory."""

from __future__ import annotations

import pytest
import torch

from tests.run.strips.families import FAMILIES
from tests.run.strips.running import Network, allowed, distance
from tightfit.run.vae import Direction

DIRECTIONS: tuple[Direction, ...] = ("decode", "encode")


def _source(name: str, direction: Direction, dtype: torch.dtype) -> torch.Tensor:
    family = FAMILIES[name]
    shape = family.latent if direction == "decode" else family.samples
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_vae_in_strips_gives_what_it_gives_whole(name: str, direction: Direction) -> None:
    """In float32, from the card and from the host, cut along height and width."""
    vae = FAMILIES[name].build()
    source = _source(name, direction, torch.float32)
    with torch.no_grad():
        whole = vae.call(direction)(source)
    vae.reset()
    strips = 0
    for from_end, part, on_card in ((2, 2.0, True), (1, 1.3, False)):
        network = Network.of(
            vae.module, vae.call(direction), source, from_end=from_end, reset=vae.reset
        )
        full = network.laying.within(2**30, given_on_card=on_card)
        assert full is not None
        room = max(int(full.card_bytes / part), network.laying.least(given_on_card=on_card) or 0)
        made = network.run(source, room, on_card=on_card)
        assert made is not None
        assert distance(made.value, whole) <= 1e-5
        assert made.peak <= allowed(made.layout)
        strips = max(strips, made.layout.most_strips)
    assert strips > 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_in_strips_is_as_near_as_the_whole(name: str, dtype: torch.dtype) -> None:
    """To a run in float32; decode, in a part of the memory."""
    family = FAMILIES[name]
    exact_vae, vae = family.build(), family.build(dtype)
    source = _source(name, "decode", dtype)
    with torch.no_grad():
        exact = exact_vae.decode(source.float())
        whole = vae.decode(source)
    vae.reset()
    network = Network.of(vae.module, vae.decode, source, reset=vae.reset)
    full = network.laying.within(2**30)
    assert full is not None
    room = max(full.card_bytes // 2, network.laying.least() or 0)
    made = network.run(source, room)
    assert made is not None
    assert made.value.dtype == dtype
    bound = 2e-2 if dtype == torch.bfloat16 else 2.5e-3
    near = distance(made.value, exact) <= 1.1 * distance(whole, exact)
    assert near or distance(made.value, whole) <= bound
