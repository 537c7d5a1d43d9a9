"""Fitted modules that rest between calls: they come back by the plan they had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tightfit.api.fitting import fit_at_rest, unfit
from tightfit.card import open_card
from tightfit.plan.budget import Budget
from tightfit.run.fitting import keeping as kept
from tightfit.run.fitting.fitted import Fitted
from tightfit.units import MIB

WIDTH, LAYERS = 256, 12


def network() -> nn.Module:
    """3 MiB of weights."""
    torch.manual_seed(0)
    return (
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        .eval()
        .requires_grad_(False)
    )


def at_rest(module: nn.Module, budget: int, **more: Any) -> Fitted:
    """Fitted to a virtual card of so many bytes, as a part of a pipeline is."""
    card = open_card(f"virtual:{budget}B")
    wish = Budget(budget)
    return fit_at_rest(
        module, card=card, budget=wish, mode="auto", pack="off", others=lambda: 0, **more
    )


@pytest.mark.parametrize("budget", [2 * MIB, 8 * MIB])
def test_the_second_time_nothing_is_planned(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed or resident: equal calls after a rest place the same weights with the same bits."""
    module = network()
    x = torch.randn(4, WIDTH)
    expected = module(x)
    fitted = at_rest(module, budget)
    assert torch.equal(module(x).cpu(), expected)
    module(x)  # the first call tells what calls need
    fitted.rest()
    module(x)
    plan, taken = fitted.plan, fitted.taken
    plans: list[object] = []
    make = kept.__dict__["plan_call"]

    def counted(*args: Any, **more: Any) -> Any:
        plans.append(args)
        return make(*args, **more)

    monkeypatch.setattr(kept, "plan_call", counted)
    for _ in range(2):
        fitted.rest()
        assert fitted.taken == 0
        assert torch.equal(module(x).cpu(), expected)
        assert fitted.plan is plan
        assert fitted.taken == taken
    assert not plans
    unfit(module)


def test_another_call_or_room_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that takes more, and a budget that is smaller, than those that the plan was for."""
    module = network()
    x = torch.randn(4, WIDTH)
    expected = module(x)
    fitted = at_rest(module, 8 * MIB)
    module(x)
    module(x)
    fitted.rest()
    module(x)
    before = fitted.plan
    fitted.rest()
    module(torch.randn(64, WIDTH))
    assert fitted.plan is not before
    fitted.rest()
    fitted.rebudget(Budget(2 * MIB))
    fitted.card.reset_peaks()
    assert torch.equal(module(x).cpu(), expected)
    assert fitted.session.residency.streamed
    assert (fitted.card.read().peak_allocated or 0) <= 2 * MIB
    unfit(module)


def test_what_runs_once_is_packed_only_where_nothing_else_fits() -> None:
    """For speed it would have to pay back in one call, which brings all of it anyway."""
    from tightfit.plan.figure import Rate
    from tightfit.run.fitting.need import Need
    from tightfit.run.fitting.packs import Packs
    from tightfit.run.fitting.placing import plan_call

    module = network().to(torch.bfloat16)
    fitted = at_rest(module, 8 * MIB)
    module(torch.randn(4, WIDTH, dtype=torch.bfloat16))
    keeping = fitted._kept
    asked: list[bool] = []

    def packs() -> tuple[Packs, Rate]:
        asked.append(True)
        return keeping.weighed.packs(lambda tensor: tensor, fitted.card.device), Rate(1e13)

    supply = keeping.supply_now()
    small = supply.__class__(**{**vars(supply), "budget": MIB, "total": MIB})
    need = Need(dry=0, allocated=0)
    for once in (True, False):
        asked.clear()
        plan = plan_call(keeping.weighed, need, small, pack="auto", packs=packs, once=once)
        assert plan.fits
        assert bool(asked) != once
    unfit(module)
