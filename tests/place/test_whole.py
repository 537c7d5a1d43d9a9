"""A whole module on a device, and back off it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tightfit.card import open_card
from tightfit.place import placed
from tightfit.testing import oom_after
from tightfit.weigh import weight_bytes, weights


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), weight_norm(nn.Conv2d(8, 4, 1)), nn.Identity()
    ).eval()


def masters_of(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(held.path, held.tensor) for held in weights(module)]


def assert_same(module: nn.Module, masters: list[tuple[str, torch.Tensor]]) -> None:
    """The very same tensors in the very same places."""
    now = masters_of(module)
    assert [path for path, _ in now] == [path for path, _ in masters]
    assert all(a is b for (_, a), (_, b) in zip(now, masters, strict=True))


def test_inside_all_weights_are_on_the_card_and_the_result_is_right() -> None:
    """Parameters, buffers and parametrized weights move; the bytes are those that were weighed."""
    card, module = open_card("virtual:64MiB"), network()
    x = torch.randn(1, 3, 8, 8)
    expected = module(x).detach()
    with placed(module, card.device), torch.no_grad():
        assert {held.tensor.device for held in weights(module)} == {card.device}
        assert card.read().allocated >= weight_bytes(module)
        torch.testing.assert_close(module(x.to(card.device)).cpu(), expected)
    assert card.read().allocated == 0


def test_outside_the_masters_are_back_on_success() -> None:
    """The very tensors that were there before, whatever was written on the card meanwhile."""
    card, module = open_card("virtual:64MiB"), network()
    masters = masters_of(module)
    values = [tensor.clone() for _, tensor in masters]
    with placed(module, card.device), torch.no_grad():
        for held in weights(module):
            held.tensor.zero_()
    assert_same(module, masters)
    assert all(torch.equal(a, b) for a, (_, b) in zip(values, masters, strict=True))


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, torch.OutOfMemoryError])
def test_outside_the_masters_are_back_on_error(error: type[BaseException]) -> None:
    """Whatever the error is."""
    card, module = open_card("virtual:64MiB"), network()
    masters = masters_of(module)
    with pytest.raises(error), placed(module, card.device):
        raise error
    assert_same(module, masters)
    assert card.read().allocated == 0


def test_a_card_that_fills_up_on_the_way_leaves_everything_as_it_was() -> None:
    """At each tensor in turn: masters in place, the card empty without a collection."""
    card, module = open_card("virtual:64MiB"), network()
    masters = masters_of(module)
    gc.disable()
    try:
        for at in range(len(masters)):
            with (
                oom_after(card, at),
                pytest.raises(torch.OutOfMemoryError),
                placed(module, card.device),
            ):
                pytest.fail("the module was placed without all of its weights")
            assert_same(module, masters)
            assert card.read().allocated == 0
    finally:
        gc.enable()
    with placed(module, card.device):
        assert card.read().allocated


def test_kinds_of_tensors_are_kept() -> None:
    """Parameters stay Parameters with their gradient flag; integers and halves keep their dtype."""
    card, module = open_card("virtual:64MiB"), network()
    module[0].weight.requires_grad_(False)
    module[1].half()
    with placed(module, card.device):
        assert isinstance(module[0].weight, nn.Parameter)
        assert not module[0].weight.requires_grad
        assert module[0].bias.requires_grad
        assert module[1].num_batches_tracked.dtype == torch.int64
        assert module[1].running_mean.dtype == torch.float16


def test_ties_stay_ties_across_parameters_and_buffers() -> None:
    """One copy for each storage and layout, wherever it is held."""
    card = open_card("virtual:64MiB")
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    module[1].weight = module[0].weight
    module[1].register_buffer("again", module[0].weight.detach())
    with placed(module, card.device):
        assert module[0].weight is module[1].weight is module[1].again
        assert card.read().allocated == 64 * 64 * 4


def test_placing_on_the_host_moves_nothing() -> None:
    """The masters are used as they are."""
    module = network()
    masters = masters_of(module)
    with placed(module, "cpu"):
        assert_same(module, masters)


def test_placing_on_meta_gives_shapes() -> None:
    """For a dry run; also while the module is on a card."""
    card, module = open_card("virtual:64MiB"), network()
    with placed(module, card.device):
        held = card.read().allocated
        with placed(module, "meta"):
            assert {held.tensor.device.type for held in weights(module)} == {"meta"}
        assert {held.tensor.device for held in weights(module)} == {card.device}
        assert card.read().allocated == held


@pytest.mark.parametrize("on", ["host", "card"])
def test_weights_can_be_copies_in_another_dtype(on: str) -> None:
    """Those of floating point; ties stay ties, and the masters come back untouched."""
    card = open_card("virtual:64MiB")
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    module[1].weight = module[0].weight
    module.register_buffer("count", torch.arange(3))
    before = dict(module.state_dict(keep_vars=True))
    device = card.device if on == "card" else torch.device("cpu")
    with placed(module, device, dtype=torch.float32):
        assert module[0].weight is module[1].weight
        assert module[0].weight.dtype == torch.float32
        assert module[0].weight.device == device
        assert module.count.dtype == torch.int64
        torch.testing.assert_close(
            module[0].weight.detach().cpu(), before["0.weight"].detach().float(), rtol=0, atol=0
        )
    after = module.state_dict(keep_vars=True)
    assert all(after[name] is held for name, held in before.items())
