"""What a module keeps on itself, put back as it was."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.card import Card, open_card
from tightfit.run.ladder import Keepsakes


class Model(nn.Module):
    """Keeps things in every way that was met."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.none = None
        self.feat: list[Any] = [None] * 5
        self.grown: list[Any] = []
        self.words: dict[str, Any] = {"name": "x"}
        self.pair: tuple[Any, ...] = (1, None)
        self.table = torch.arange(4.0)


@pytest.fixture
def card() -> Card:
    return open_card("virtual:64MiB")


@pytest.fixture
def model() -> Model:
    return Model()


def there(card: Card, size: int = 256) -> torch.Tensor:
    return torch.zeros(size, device=card.device)


def test_a_filled_cache_is_emptied_and_named_with_its_bytes(card: Card, model: Model) -> None:
    """The line says where, how many and how much; the card is empty, no collection needed."""
    keepsakes = Keepsakes(model, device=card.device, name="vae")
    model.feat[1], model.feat[3] = there(card), there(card)
    assert keepsakes.drop() == ("vae.feat (2 tensors, 2.0 KiB)",)
    assert model.feat == [None] * 5
    assert card.read().allocated == 0


def test_everything_is_put_back_as_it_was(card: Card, model: Model) -> None:
    """None is None again, lists are as long, keys are gone, new attributes are no attributes."""
    keepsakes = Keepsakes(model, device=card.device)
    model.none = there(card)
    model.grown += [there(card), {"deep": there(card)}]
    model.words["cache"] = there(card)
    model.pair = (1, there(card))
    model.fresh = there(card)
    model.inner.cache = [there(card)]
    lines = keepsakes.drop()
    assert sorted(line.split(" ")[0] for line in lines) == sorted(
        ["none", "grown", "words", "pair", "fresh", "inner.cache"]
    )
    assert (model.none, model.grown, model.words, model.pair) == (
        None,
        [],
        {"name": "x"},
        (1, None),
    )
    assert not hasattr(model, "fresh")
    assert not hasattr(model.inner, "cache")
    assert card.read().allocated == 0


def test_a_host_table_that_was_moved_to_the_card_comes_back(card: Card, model: Model) -> None:
    """`self.table = self.table.to(x.device)`: None in its place would break the next call."""
    keepsakes = Keepsakes(model, device=card.device)
    model.table = model.table.to(card.device)
    keepsakes.drop()
    assert model.table.tolist() == [0, 1, 2, 3]
    assert card.read().allocated == 0


def test_what_was_there_before_stays(card: Card, model: Model) -> None:
    """A tensor that the module held before the call is its own business."""
    model.feat[0] = there(card)
    keepsakes = Keepsakes(model, device=card.device)
    model.feat[1] = there(card)
    keepsakes.drop()
    assert isinstance(model.feat[0], torch.Tensor)
    assert model.feat[1:] == [None] * 4
    assert Keepsakes(model, device=card.device).drop() == ()


def test_tensors_elsewhere_are_left_alone(card: Card, model: Model) -> None:
    """A table that was built on the host, and the flag that says so, stay together."""
    keepsakes = Keepsakes(model, device=card.device)
    model.built = torch.ones(3)
    assert keepsakes.drop() == ()
    assert model.built.sum() == 3


def test_weights_are_not_keepsakes(card: Card, model: Model) -> None:
    """Parameters and buffers come and go with placing."""
    keepsakes = Keepsakes(model, device=card.device)
    model.register_buffer("more", there(card))
    assert keepsakes.drop() == ()


def test_nothing_is_kept_alive_by_remembering(card: Card, model: Model) -> None:
    """A module that lets go in the middle of a call frees its memory then."""
    model.feat[0] = there(card)
    model.holder = type("Holder", (), {})()
    model.holder.cache = there(card)
    holder = weakref.ref(model.holder)
    keepsakes = Keepsakes(model, device=card.device)
    gc.disable()
    try:
        model.feat = [None] * 5
        model.holder = None
        assert holder() is None
        assert card.read().allocated == 0
    finally:
        gc.enable()
    assert keepsakes.drop() == ()


def test_a_list_that_others_share_stays_the_same_list(card: Card, model: Model) -> None:
    """What is in it goes; who refers to it still does."""
    model.inner.shared = model.feat
    keepsakes = Keepsakes(model, device=card.device)
    model.feat[2] = there(card)
    keepsakes.drop()
    assert model.inner.shared is model.feat
    assert model.feat == [None] * 5


def test_a_replaced_list_is_put_back_in_length_too(card: Card, model: Model) -> None:
    """A longer list in its place is as long as the old one again."""
    keepsakes = Keepsakes(model, device=card.device)
    model.feat = [there(card) for _ in range(9)]
    keepsakes.drop()
    assert model.feat == [None] * 5
