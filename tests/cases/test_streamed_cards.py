"""A02, A03 and D01 for modules that stream: whose memory counts, and which card it is on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import virtual
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.testing import oom_after, other_program, toy_vae
from tightfit.units import MIB

WIDTH = 512
LAYERS = 40


def layers() -> nn.Sequential:
    """40 layers of 1 MiB."""
    torch.manual_seed(0)
    blocks = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    return nn.Sequential(*blocks).eval().requires_grad_(False)


@pytest.fixture(name="x")
def source() -> torch.Tensor:
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))


def twice(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The result of the second call."""
    with torch.no_grad():
        module(x)
        value: torch.Tensor = module(x).cpu()
    return value


@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
def test_a02_a_limit_that_was_set_before_us_bounds_what_stays(
    allocator: str, x: torch.Tensor
) -> None:
    """32 of 64: reserved stays under it, and the context is a line of its own outside it."""
    module = layers()
    expected = twice(module, x)
    card = virtual(f"64MiB,allocator={allocator},context=2MiB,grain=2MiB")
    with card.cap(32 * MIB):
        tightfit.fit(module, card=card, example=(x,))
        assert torch.equal(twice(module, x), expected)
        plan = tightfit.fitted(module).plan
        assert plan.stages[0].streamed
        assert plan.as_dict()["stages"][0]["ledger"]["context"]["bytes"] == 2 * MIB
        assert tightfit.fitted(module).attempts == []
        tightfit.unfit(module)
    assert (card.read().peak_reserved or 0) <= 32 * MIB
    assert card.read().allocated == 0


@pytest.mark.parametrize("reserve", [0, 4 * MIB])
def test_a03_what_others_hold_is_not_streamed_into(reserve: int, x: torch.Tensor) -> None:
    """24 of 64: we take at most 40 less the reserve, and the plan says who has the rest."""
    module = layers()
    expected = twice(module, x)
    card = virtual("64MiB")
    with other_program(card, 24 * MIB):
        tightfit.fit(module, card=card, reserve=reserve, example=(x,))
        assert torch.equal(twice(module, x), expected)
        plan = tightfit.fitted(module).plan
        assert plan.as_dict()["stages"][0]["ledger"]["held_by_others"]["bytes"] == 24 * MIB
        tightfit.unfit(module)
    assert (card.read().peak_reserved or 0) <= 40 * MIB - reserve


@pytest.fixture(name="second")
def the_second_of_two() -> Iterator[VirtualCard]:
    """The first is watched."""
    first, second = open_card("virtual:64MiB"), open_card("virtual:64MiB")
    assert isinstance(second, VirtualCard)
    first.reset_peaks()
    yield second
    assert first.read().peak_allocated == 0
    assert first.read().allocated == 0


def test_d01_streaming_touches_no_other_card(second: VirtualCard, x: torch.Tensor) -> None:
    """Place, stream, run out of memory, shrink: all on the card that was asked for."""
    module = layers()
    expected = twice(module, x)
    tightfit.fit(module, card=second, vram="16MiB", example=(x,))
    assert torch.equal(twice(module, x), expected)
    with oom_after(second, 3):
        assert torch.equal(twice(module, x), expected)
    assert tightfit.fitted(module).attempts
    second.occupy(44 * MIB)
    assert torch.equal(twice(module, x), expected)
    tightfit.unfit(module)
    assert second.read().allocated == 0


def test_d01_encode_and_decode_touch_no_other_card(second: VirtualCard) -> None:
    """The ladder's tries too."""
    vae = toy_vae("V2")
    latent = torch.rand(1, 4, 64, 64, generator=torch.Generator().manual_seed(1))
    with other_program(second, 40 * MIB):
        result = tightfit.decode(latent, vae=vae, card=second)
    assert json.loads(result.report.to_json())["attempts"][-1]["outcome"] == "ok"
