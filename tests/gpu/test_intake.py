"""What comes to a real card, and what leaves it, while the network runs."""

from __future__ import annotations

import pytest
import torch

from tests.run.test_intake import CLIP, DTYPES, UNIT, every_value, same
from tests.run.test_steps import Coming, Taken, adapted, qwen, wan
from tightfit.card import open_card
from tightfit.run.framing import to_source
from tightfit.run.job import Job, Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16], ids=str)
def test_a_card_widens_integers_as_the_host_does(kind: torch.dtype, dtype: torch.dtype) -> None:
    """Every value, to the bit: a card that divides by a number would not."""
    for traits in (CLIP, UNIT):
        same(every_value(kind), traits, dtype, torch.device("cuda:0"))


@pytest.mark.parametrize("make", [wan, qwen])
def test_steps_that_are_given_away_are_the_whole(make: object) -> None:
    """To the bit; and so is an encode of frames that come one by one."""
    vae, card, taken, coming = adapted(make), open_card("cuda:0"), Taken(), Coming()  # type: ignore[arg-type]
    request = Request(card.read().total)
    latent = torch.randn(1, 4, 5, 8, 8)
    expected = Job(vae, "decode", card, request).run(latent).value
    left = Job(vae, "decode", card, request, delivery=taken).run(latent)
    assert left.value.shape == (0, *expected.shape[1:])
    assert torch.equal(torch.cat(taken.parts, dim=2), expected)
    source = to_source(coming.all, vae.traits)[0]
    assert torch.equal(
        Job(vae, "encode", card, request).run(coming.intake(vae)).value,
        Job(vae, "encode", card, request).run(source).value,
    )
