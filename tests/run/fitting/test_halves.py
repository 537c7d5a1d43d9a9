"""A batch in two halves: only where each item goes its own way, and then what the whole is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import call, fitted_call
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tightfit.errors import MemoryShortage
from tightfit.run.fitting.halves import Halves
from tightfit.run.fitting.need import Call
from tightfit.units import GIB, KIB


class Net(nn.Module):
    """Does what it is told with a batch, beside a layer."""

    def __init__(self, what: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.what = what

    def forward(self, x: torch.Tensor, **given: Any) -> Any:
        del given
        return self.what(self.layer(x))


def halves(what: Callable[[torch.Tensor], Any], items: int = 2, **given: Any) -> Halves | None:
    net = Net(what).eval()
    return Halves.of(net, Call("forward", (torch.randn(items, 3, 8),), given))


APART: dict[str, Callable[[torch.Tensor], Any]] = {
    "by itself": lambda x: x * 2,
    "another axis is split": lambda x: torch.cat(x.chunk(3, dim=1)[::-1], dim=1),
    "all of it is taken": lambda x: x[:, 1:],
    "in a tuple, with a number": lambda x: (x, {"more": x.mean(dim=(1, 2))}, 5),
    "items are folded with rows": lambda x: x.flatten(0, 1).view(x.shape),
}
MIXED: dict[str, Callable[[torch.Tensor], Any]] = {
    "halves are exchanged": lambda x: torch.cat(x.chunk(2)[::-1]),
    "the mean of all": lambda x: x - x.mean(dim=0),
    "the first is taken from all": lambda x: x - x[:1],
    "one is given back": lambda x: x[0],
    "a permutation": lambda x: x[torch.tensor([1, 0]).to(x.device)],
    "random numbers": lambda x: x + torch.rand_like(x),
    "dropout": lambda x: nn.functional.dropout(x, training=True),
    "something that may hide tensors": lambda x: (x, object()),
    "values are looked at": lambda x: x if x.sum() > 0 else -x,
    "nothing is of the batch": lambda x: x.flatten(),
}


@pytest.mark.parametrize("name", APART)
def test_items_that_go_their_own_ways_may_be_parted(name: str) -> None:
    """Joined they are what the whole is, in the same containers."""
    for items in (2, 3, 5):
        made = halves(APART[name], items)
        assert made is not None
        net = Net(APART[name]).eval()
        with torch.no_grad():
            parts = [net(*part.args, **part.kwargs) for part in made.parts()]
            whole = net(*made.whole.args)
        joined = made.join(parts)
        torch.testing.assert_close(joined, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_what_looks_across_items_is_not_parted(name: str) -> None:
    """Nor what nobody can tell of without values, or draws random numbers."""
    assert halves(MIXED[name]) is None


def test_a_single_item_and_what_may_hide_tensors_are_not_parted() -> None:
    """There is nothing to part, or nobody knows what would have to be."""
    assert halves(APART["by itself"], items=1) is None
    assert halves(APART["by itself"], thing=object()) is None
    assert halves(APART["by itself"], generator=torch.Generator()) is None
    assert halves(APART["by itself"], name="a", scale=0.5, none=None) is not None


def test_tensors_of_the_batch_are_parted_wherever_they_are() -> None:
    """In lists and dicts; others are given to both as they are, and nothing is copied."""
    net = Net(APART["by itself"])
    x, ids, times = torch.randn(3, 4, 8), torch.randn(7, 3), torch.arange(3)
    call = Call("forward", (x,), {"ids": ids, "more": [times, {"deep": x}], "time": torch.ones(())})
    made = Halves.of(net, call)
    assert made is not None
    one, two = made.parts()
    assert [part.args[0].shape[0] for part in (one, two)] == [2, 1]
    assert two.args[0].data_ptr() == x[2].data_ptr()
    assert one.kwargs["ids"] is ids
    assert two.kwargs["more"][0].tolist() == [2]
    assert two.kwargs["more"][1]["deep"].shape == (1, 4, 8)
    assert one.kwargs["time"].dim() == 0


def unet_call(items: int, device: torch.device | str = "cpu") -> dict[str, Any]:
    """As SDXL's pipeline makes it, guided in one batch."""
    draw = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(items, *shape, generator=draw).to(device)

    return {
        "sample": drawn(4, 32, 32),
        "timestep": torch.tensor(500.0).to(device),
        "encoder_hidden_states": drawn(16, 64),
        "added_cond_kwargs": {"text_embeds": drawn(32), "time_ids": drawn(6)},
        "return_dict": False,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("items", "part", "times"), [(2, 0.5, 1), (4, 0.5, 1), (4, 0.3, 3)])
def test_guidance_in_one_batch_is_parted_where_the_whole_does_not_fit(
    items: int, part: float, times: int
) -> None:
    """And halves of it again, if they have to be: the peak is within the budget, the result that of
    the whole but for rounding, the same bits in each call, and it is said."""
    unet, card = tiny.sdxl().unet, virtual(GIB)
    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(unet)
        given = unet_call(items, card.device)
        unet(**given)
        card.reset_peaks()
        expected = unet(**given)[0].cpu()
        budget = int((card.read().peak_allocated or 0) * part)
        fitted = tightfit.fitted(unet)
        assert fitted.halved == 0
        session.budget = budget
        card.reset_peaks()
        results = [unet(**given)[0].cpu() for _ in range(2)]
        assert (card.read().peak_allocated or 0) <= budget
        assert fitted.halved == 2 * times
        assert any("two halves" in note for note in fitted.notes)
        assert torch.equal(*results)
        torch.testing.assert_close(results[0], expected, rtol=0, atol=1e-5)
        assert len(fitted.attempts) <= 4  # the whole is not tried each time
    del given
    gc.collect()
    assert_back(card)


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
def test_a_pipeline_is_guided_in_two_passes_where_one_does_not_fit() -> None:
    """The picture is made in less than one pass takes; its latents differ by rounding."""
    whole = fitted_call("sdxl", virtual(GIB), vram=None)
    card, budget = virtual(GIB), 1200 * KIB
    pipe = tightfit.fit(tiny.sdxl(), card=card, vram=budget)
    latents = call(pipe, "sdxl")
    assert tightfit.fitted(pipe).halved == {"unet": 2}
    tightfit.unfit(pipe)
    assert (card.read().peak_allocated or 0) <= budget
    assert (latents - whole).norm() <= 1e-4 * whole.norm()


def test_what_does_not_fit_in_halves_either_is_a_sentence() -> None:
    """And the card is as it was."""
    unet, card = tiny.sdxl().unet, virtual(GIB)
    given = unet_call(2, card.device)
    before = card.read().allocated
    tightfit.fit(unet, card=card, vram=150 * KIB)
    with torch.no_grad(), pytest.raises(MemoryShortage, match="Not enough memory to run"):
        unet(**given)
    assert tightfit.fitted(unet).halved == 0
    tightfit.unfit(unet)
    gc.collect()
    assert_back(card, before)


@pytest.mark.parametrize("times", [1, 2])
def test_halves_that_have_no_room_to_be_joined_find_some(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights make it; where not even that helps there is a sentence, and nothing stays."""
    unet, card, join, tries = tiny.sdxl().unet, virtual(GIB), Halves.join, []

    def joined(halves: Halves, values: Any) -> Any:
        tries.append(tightfit.fitted(unet).taken)
        if len(tries) <= times:
            raise torch.OutOfMemoryError("full")
        return join(halves, values)

    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(unet)
        given = unet_call(2, card.device)
        card.reset_peaks()
        unet(**given)
        session.budget = (card.read().peak_allocated or 0) // 2
        expected = unet(**given)[0].cpu()
        monkeypatch.setattr(Halves, "join", joined)
        if times == 1:
            assert torch.equal(unet(**given)[0].cpu(), expected)
            assert tries[0] > tries[1] == 0
        else:
            with pytest.raises(MemoryShortage, match="to join what two halves"):
                unet(**given)
    del given
    gc.collect()
    assert_back(card)


def test_a_batch_is_whole_again_where_there_is_room_for_it() -> None:
    """Once the budget is raised, the bits are those of the whole."""
    unet, card = tiny.sdxl().unet, virtual(GIB)
    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(unet)
        given = unet_call(2, card.device)
        expected = unet(**given)[0].cpu()
        card.reset_peaks()
        unet(**given)
        session.budget = (card.read().peak_allocated or 0) // 2
        unet(**given)
        fitted = tightfit.fitted(unet)
        assert fitted.halved == 1
        session.budget = "1GiB"
        assert torch.equal(unet(**given)[0].cpu(), expected)
        assert fitted.halved == 1
