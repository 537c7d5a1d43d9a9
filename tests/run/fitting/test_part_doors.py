"""Parts of a module that is at rest are called by themselves, as pipelines do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.api.test_fitting import WIDTH, inputs, opened, wanted
from tightfit.api.fitting import fit_at_rest, unfit
from tightfit.plan.budget import BudgetWish
from tightfit.run.fitting.fitted import Fitted
from tightfit.run.fitting.part_doors import PartDoors


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Both(nn.Module):
    """Two towers, of which the whole uses one; it multiplies with a weight it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.text = Tower()
        self.vision = Tower()
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.text(x), self.shared.weight)


def both() -> Any:
    torch.manual_seed(0)
    return Both().eval().requires_grad_(False)


def at_rest(module: nn.Module, size: str, mode: str) -> Fitted:
    card = opened(size)
    amount = BudgetWish.of(None, None).on(card.name, card.read().total)
    return fit_at_rest(module, card=card, budget=amount, mode=mode, pack="off")


@pytest.mark.parametrize("mode", ["none", "auto"])
@pytest.mark.parametrize("size", ["120KiB", "2MiB"])
def test_a_part_that_is_called_by_itself_wakes_the_whole(size: str, mode: str) -> None:
    """Before any call of the whole, and after a rest: with its own bits."""
    module, x = both(), inputs()
    vision = wanted(module, lambda card: module.vision(x.to(card.device)))
    layer = wanted(module, lambda card: module.text.layers[1](x.to(card.device)))
    whole = wanted(module, lambda card: module(x.to(card.device)))
    fitted = at_rest(module, size, mode)
    there = x.to(fitted.card.device)
    for _ in range(2):
        assert torch.equal(module.vision(there).cpu(), vision)
        assert not fitted.rests
        assert torch.equal(module(x).cpu(), whole)
        fitted.rest()
        assert torch.equal(module.text.layers[1](x).cpu(), layer)
        fitted.rest()
    unfit(module)
    del there
    assert torch.equal(module(x), whole)
    assert all("_compiled_call_impl" not in vars(part) for part in module.modules())
    assert fitted.card.read().allocated == 0


def test_in_calls_of_the_whole_nothing_stands_in_its_parts() -> None:
    """It would cost each of thousands of calls something."""
    module, x = both(), inputs()
    fitted = at_rest(module, "2MiB", "auto")
    assert "_compiled_call_impl" in vars(module.text)
    seen: list[bool] = []
    module.text.register_forward_pre_hook(
        lambda part, args: seen.append("_compiled_call_impl" in vars(part))
    )
    module(x)
    module(x)
    assert not any(seen)
    fitted.rest()
    assert "_compiled_call_impl" in vars(module.text)
    unfit(module)


def test_a_part_of_a_part_is_entered_once() -> None:
    """Doors of the layers are closed while their tower is called."""
    module, x = both(), inputs()
    entered: list[str] = []

    def enter(path: str, run: Any, args: Any, kwargs: Any) -> Any:
        entered.append(path)
        doors.close()
        return run(*args, **kwargs)

    doors = PartDoors(module, enter)
    module.vision(x)
    module.vision(x)
    assert entered == ["vision"]
