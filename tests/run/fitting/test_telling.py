"""What a fitted module tells of where its weights are, and of what its calls do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tightfit
from tests.cases.common import virtual
from tests.streaming import Net
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.streaming.tracing import KEPT
from tightfit.run.fitting.fitted import Fitted
from tightfit.units import MIB
from tightfit.watch import Recorder

WIDTH = 128
BUDGET = MIB


def told(recorder: Recorder, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in recorder.events() if event["event"] in kinds]


@torch.no_grad()
def fitted(card: VirtualCard, recorder: Recorder | None = None, **more: Any) -> Fitted:
    """A network of which a part is streamed; another recorder hears all but its first placing."""
    torch.manual_seed(0)
    module = Net(WIDTH, (0, 1, 2, 3, 0, 2)).eval()
    tightfit.fit(
        module, card=card, vram=BUDGET, example=(torch.zeros(2, WIDTH),), pack="off", **more
    )
    found = tightfit.fitted(module)
    if recorder is not None:
        found.recorder = recorder
    return found


def test_every_piece_is_told_once_in_its_place() -> None:
    """Residents with the card's figures, a ring, and what streams through it."""
    card = virtual("64MiB")
    network = fitted(card)
    recorder = network.recorder
    placed = told(recorder, "placed")
    residency = network.session.residency
    by_state = {
        state: {event["block"] for event in placed if event["state"] == state}
        for state in ("resident", "streamed")
    }
    assert by_state["resident"] == {piece.name for piece in residency.resident}
    assert by_state["streamed"] == {piece.name for piece in residency.streamed}
    assert [event["n"] for event in placed] == list(range(len(placed)))
    assert sum(event["bytes"] for event in told(recorder, "ring")) == network.session.ring_bytes
    (plan,) = told(recorder, "plan")
    assert plan["budget_bytes"] == BUDGET
    assert plan["ledger"]["weights_resident"] > 0
    (moved,) = told(recorder, "moved")
    assert moved["bytes"] == residency.resident_bytes
    assert recorder.header()["card"]["name"] == card.name
    tightfit.unfit(network.module)


def test_rest_is_told_with_what_came_free() -> None:
    """And that all is placed again by the next call."""
    card = virtual("64MiB")
    network = fitted(card)
    recorder = network.recorder
    freed = network.rest()
    assert told(recorder, "rests")[-1]["bytes"] == freed
    before = recorder.counts["placed"]
    network.module(torch.zeros(2, WIDTH))
    assert recorder.counts["placed"] == 2 * before
    assert told(recorder, "moved")[-1]["why"] == "it was at rest"
    tightfit.unfit(network.module)


def test_what_leaves_the_card_is_told_by_name() -> None:
    """Another program takes memory: some that stayed do not any more."""
    card = virtual("2MiB")
    network = fitted(card)
    stayed = {piece.name for piece in network.session.residency.resident}
    card.occupy(card.read().free or 0)
    network.module(torch.zeros(2, WIDTH))
    stays = {piece.name for piece in network.session.residency.resident}
    gone = [event["block"] for event in told(network.recorder, "evicted")]
    assert stayed - stays
    assert stayed - stays <= set(gone) <= stayed
    tightfit.unfit(network.module)
    card.vacate(card.spec.total)


@pytest.mark.parametrize("calls", [1, 3, KEPT, 2 * KEPT + 3])
def test_every_call_is_told_once_as_a_step(calls: int) -> None:
    """In order, however many there were; the last ones when it is given back."""
    network = fitted(virtual("64MiB"), Recorder(fine=True), traces=True)
    recorder = network.recorder
    bits = []
    for _ in range(calls):
        bits.append(network.module(torch.ones(2, WIDTH)).cpu())
        assert recorder.counts["streamed_step"] >= len(bits) // KEPT * KEPT
    tightfit.unfit(network.module)
    steps = told(recorder, "streamed_step")
    assert len(steps) == calls
    assert all(step["network"] == "Net" and step["moved_bytes"] > 0 for step in steps)
    starts = [step["start"] for step in steps]
    assert starts == sorted(starts)
    assert all(torch.equal(each, bits[0]) for each in bits)


def test_a_recorder_is_told_no_steps_of_calls_before_it() -> None:
    """They were by another clock."""
    network = fitted(virtual("64MiB"), traces=True)
    for _ in range(3):
        network.module(torch.ones(2, WIDTH))
    network.recorder = Recorder(fine=True)
    network.module(torch.ones(2, WIDTH))
    network.tell()
    assert network.recorder.counts["streamed_step"] == 1
    tightfit.unfit(network.module)


def test_the_moves_of_a_call_sum_up_to_what_the_card_holds() -> None:
    """Those between two calls included."""
    card = virtual("64MiB")
    network = fitted(card, Recorder(fine=True))
    for _ in range(2):
        kept = network.module(torch.ones(2, WIDTH))
        assert network.recorder.live_bytes == card.read().allocated
        del kept
    tightfit.unfit(network.module)


def test_nothing_fine_is_told_where_nobody_asked() -> None:
    """The coarse level of a thousand calls is nothing but what changed."""
    network = fitted(virtual("64MiB"))
    before = len(network.recorder.events())
    for _ in range(20):
        network.module(torch.ones(2, WIDTH))
    after = network.recorder.events()[before:]
    assert {event["event"] for event in after} <= {"plan", "moved", "placed", "ring", "memory"}
    tightfit.unfit(network.module)
