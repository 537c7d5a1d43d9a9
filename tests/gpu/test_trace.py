"""Traces on a real CUDA card; run once for each allocator (PYTORCH_CUDA_ALLOC_CONF)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.common import emptied
from tests.streaming import Net
from tightfit.api import fit, fitted, unfit
from tightfit.card import Card, open_card
from tightfit.report.modules import modules, table
from tightfit.report.trace_file import Trace
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.moves import moves_told

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


@pytest.fixture(name="card")
def opened() -> Iterator[Card]:
    """The first CUDA card."""
    card = open_card("cuda:0")
    emptied()
    card.trim()
    yield card
    emptied()
    card.trim()
    card.check()


def test_l06_moves_are_the_allocators_own_or_it_is_said_what_is_not_seen(card: Card) -> None:
    """Native and expandable: sums to the byte, with addresses. cudaMallocAsync: an account."""
    recorder = Recorder(fine=True)
    before = card.read().allocated
    with moves_told(card, recorder):
        kept = [torch.empty(size * MIB, dtype=torch.uint8, device=card.device) for size in (30, 2)]
        del kept[0]
    now = card.read()
    events = [event for event in recorder.events() if event["event"] == "allocate"]
    assert before is not None
    assert now.allocated is not None
    if card.allocator == "async":
        assert recorder.counts["unseen"] >= 1
        assert recorder.live_bytes == 2 * MIB
    else:
        assert recorder.counts["unseen"] == 0
        assert recorder.live_bytes == now.allocated
        assert [event["bytes"] for event in events[-2:]] == [30 * MIB, 2 * MIB]
        assert all(event["address"] for event in events[-2:])
        assert "test_trace.py" in events[-1]["by"]
        assert 0 <= events[-1]["t"] <= recorder.now()
    assert open_card("cuda:0").allocator == card.allocator


def test_the_table_of_blocks_is_what_the_card_said(card: Card) -> None:
    """The last row has what was reserved and allocated when all was placed."""
    module = Net(512, (0, 1, 2, 3)).eval()
    fit(module, card=card)
    recorder = fitted(module).teller.recorder
    now = card.read()
    told = Trace(recorder.header(), tuple(recorder.events()))
    unfit(module)
    rows = modules(told)
    assert (rows[-1].reserved, rows[-1].allocated) == (now.reserved, now.allocated)
    assert f"slack under {card.allocator}" in table(told)[-1]


def test_a_traced_call_gives_the_same_bits_and_tells_its_steps(card: Card) -> None:
    """With everything streamed."""
    module, x = Net(512, (0, 1, 2, 3)).eval(), torch.randn(4, 512)
    with torch.no_grad():
        fit(module, card=card, mode="none", example=(x,), traces=True)
        plain = module(x).cpu()
        recorder = fitted(module).teller.recorder = Recorder(fine=True)
        for _ in range(3):
            assert torch.equal(module(x).cpu(), plain)
        fitted(module).tell()
        unfit(module)
    steps = [event for event in recorder.events() if event["event"] == "streamed_step"]
    assert len(steps) >= 3
    assert all(step["seconds"] > 0 and step["moved_bytes"] > 0 for step in steps[-3:])
