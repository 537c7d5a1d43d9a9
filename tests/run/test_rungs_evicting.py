"""Lower rungs that have no room beside idle models, and have it once those are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.cases.common import Idle, assert_back, virtual
from tightfit.errors import MemoryShortage
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Attempt
from tightfit.run.vae import Vae
from tightfit.testing import toy_vae, wrap_toy
from tightfit.units import KIB, MIB

FOR_EACH = 8 * KIB
"""Values of scratch for each of a latent: 32 MiB for 32 x 32 of them."""


class Greedy(nn.Module):
    """Needs much of the card for what it is given, so that only small tiles have room."""

    def __init__(self, inner: Vae) -> None:
        super().__init__()
        self.inner = inner.module

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """As the one inside."""
        result: torch.Tensor = self.inner.encode(x)
        return result

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """As the one inside, with scratch."""
        scratch = z.new_zeros(z[0, 0].numel() * FOR_EACH)
        result: torch.Tensor = self.inner.decode(z)
        return result + scratch[0]


def greedy() -> Vae:
    """Whose decode of 32 x 32 takes 46 MiB."""
    inner = toy_vae("V2")
    return wrap_toy(Greedy(inner), replace(inner.traits, name="Greedy"))


def told(attempts: tuple[Attempt, ...]) -> list[tuple[str, str]]:
    """Rungs and what became of them."""
    return [(each.rung, each.outcome) for each in attempts]


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_tiles_that_were_asked_for_get_the_card_once_nothing_smaller_has_room(
    estimate: bool,
) -> None:
    """Beside 22 MiB that are idle, 2 are left: less than the smallest tile takes. No job is made
    again for that, and the try says what it began with."""
    vae, source, card = greedy(), torch.rand(1, 4, 32, 32), virtual("24MiB")
    idle = Idle(card.device, 10 * MIB, 12 * MIB)
    request = Request(24 * MIB, wish=parse_tile("96"), estimate=estimate, evict=idle.evict)
    outcome = Job(vae, "decode", card, request).run(source)
    last = outcome.attempts[-1]
    assert (last.rung, last.outcome) == ("tiles 96x96, idle models evicted", "ok")
    assert last.tile == (96, 96)
    assert last.baseline_bytes == last.held_before_bytes
    assert idle.asked == [None]
    assert all(outcome != "ok" for _, outcome in told(outcome.attempts)[:-1])
    roomy = Job(vae, "decode", virtual("64MiB"), replace(request, budget=64 * MIB, evict=None))
    assert torch.equal(outcome.value, roomy.run(source).value)
    assert_back(card)


def test_where_nothing_can_go_tiles_are_not_tried_a_second_time() -> None:
    """What was asked to go is at work, and gives nothing."""
    vae, card = greedy(), virtual("24MiB")
    idle = Idle(card.device, 22 * MIB)
    request = Request(24 * MIB, wish=parse_tile("96"), evict=lambda _: 0)
    with pytest.raises(MemoryShortage) as caught:
        Job(vae, "decode", card, request).run(torch.rand(1, 4, 32, 32))
    again = [each for each in told(caught.value.attempts) if each[0].endswith("evicted")]
    assert again == [("tiles 96x96, idle models evicted", "skipped")]
    assert len(idle.blocks) == 1


def test_models_that_are_small_are_asked_for_what_one_item_of_a_batch_lacks() -> None:
    """Both items would not have room without them either; one has, and that is exact."""
    vae, source, card = greedy(), torch.rand(2, 4, 32, 32), virtual("56MiB")
    idle = Idle(card.device, 7 * MIB, 7 * MIB)
    outcome = Job(vae, "decode", card, Request(56 * MIB, evict=idle.evict)).run(source)
    assert told(outcome.attempts) == [
        ("whole", "skipped"),
        ("evict idle models", "skipped"),
        ("batch of 1", "skipped"),
        ("batch of 1, idle models evicted", "ok"),
    ]
    assert outcome.exact
    assert len(idle.blocks) == 1  # no more went than what was missing
    idle.blocks.clear()
    assert_back(card)
