"""What calls need: told by one run, and how much slack they get."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.streaming import Net
from tightfit.adapters.libraries import quiet
from tightfit.adapters.loading.whole import find_pipeline
from tightfit.adapters.parts import load_part
from tightfit.card import open_card
from tightfit.errors import UsageError
from tightfit.run.fitting.need import Call, Need, need_and_order, need_of, order_of
from tightfit.units import MIB


def test_slack_is_raised_in_a_few_steps_to_its_bound() -> None:
    """Each at least as large as the one before; then it stays."""
    need = Need(allocated=320 * MIB, slack=20 * MIB, least=5 * MIB, most=200 * MIB)
    raised = [need]
    while (after := raised[-1].lacking(MIB)) != raised[-1]:
        raised.append(after)
    assert len(raised) <= 6
    slacks = [each.slack for each in raised]
    assert slacks == sorted(slacks)
    assert slacks[-1] == 320 * MIB
    assert {each.least for each in raised} == {need.least}


@pytest.mark.parametrize("allocated", [None, 0, 10 * MIB])
def test_slack_grows_by_the_step_of_the_allocator_at_least(allocated: int | None) -> None:
    """Also of a call of which nothing else is known."""
    assert Need(allocated=allocated).lacking(32 * MIB).slack == 32 * MIB


def test_slacks_fall_from_what_a_loop_should_have_to_what_one_call_needs() -> None:
    """What calls were seen to lack lies between, and is never more than the first."""
    need = Need(allocated=100 * MIB, slack=50 * MIB, least=10 * MIB, most=60 * MIB)
    assert need.slacks == (50 * MIB, 10 * MIB, 10 * MIB)
    for _ in range(6):
        need = need.lacking(MIB)
        most, between, least = need.slacks
        assert most >= between > least == 10 * MIB


def test_what_a_call_was_seen_to_hold_with_is_not_taken_away() -> None:
    """Neither from loops nor from one."""
    need = Need(allocated=100 * MIB, slack=50 * MIB, least=10 * MIB).with_room(30 * MIB)
    assert (need.slack, need.least) == (80 * MIB, 40 * MIB)


class Looking(nn.Module):
    """Decides by a value, which a dry run has none of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) if x.sum() > 0 else x
        return result


@pytest.mark.parametrize("module", [Net(16, (0, 1, 2, 3)).eval(), Looking()])
@pytest.mark.parametrize("name", ["virtual:1GiB", "virtual:1GiB,allocator=native"])
def test_one_run_tells_what_two_would(module: Any, name: str) -> None:
    """Also where nothing can be told."""
    call = Call("forward", (torch.ones(4, 16),), {})
    card = open_card(name)
    both = need_and_order(module, call, card)
    assert both == (need_of(module, call, card), order_of(module, call))


def test_one_run_refuses_what_two_would() -> None:
    """By its path."""
    module = nn.BatchNorm1d(4)
    call = Call("forward", (torch.ones(3, 4),), {})
    with pytest.raises(UsageError, match="is written to in calls"):
        need_and_order(module, call, open_card("virtual:1GiB"))


class Masked(nn.Module):
    """Asks whether its mask hides anything: only then it makes something as large as the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not mask.all():
            x = x * mask + x.flip(0)
        result: torch.Tensor = self.layer(x)
        return result


def test_a_network_that_asks_for_a_truth_needs_what_the_worse_answer_takes() -> None:
    """Whatever the mask of this call is; and its order is one."""
    module, x = Masked().eval(), torch.ones(64, 64)
    mask = torch.ones(64, 64, dtype=torch.bool)
    call = Call("forward", (x, mask), {})
    need, order = need_and_order(module, call, open_card("virtual:1GiB"))
    assert need.problem is None
    assert need.dry is not None
    assert need.dry >= 3 * x.nbytes
    assert order is not None
    assert order.uses == ("layer",)


def test_where_answers_lead_to_different_weights_no_order_is_told() -> None:
    """What is needed is."""
    call = Call("forward", (torch.ones(4, 16),), {})
    need, order = need_and_order(Looking(), call, open_card("virtual:1GiB"))
    assert need.problem is None
    assert order is None


@pytest.mark.parametrize("spec", ["flux.2-dev-mini", "qwen-image-mini", "wan2.1-t2v-1.3b-mini"])
def test_text_encoders_that_are_given_masks_are_told_beforehand(spec: str) -> None:
    """Those of transformers look whether a mask hides anything."""
    (part,) = [p for p in find_pipeline(f"random:{spec}").parts if p.name == "text_encoder"]
    with quiet():
        module = load_part(part, dtype=torch.float32)
    ids = torch.zeros(1, 24, dtype=torch.long)
    call = Call("forward", (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    need, order = need_and_order(module, call, open_card("virtual:1GiB"))
    assert need.problem is None
    assert order is not None
