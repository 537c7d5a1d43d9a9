"""The host memory of strips beside a real card."""

from __future__ import annotations

import psutil
import pytest
import torch

from tests.gpu.common import waits_refused
from tightfit.card import open_card
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.strips.arena import HostArena
from tightfit.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
SIZE = 256 * MIB


@pytest.mark.parametrize("pin", [None, False])
def test_strips_go_both_ways_through_it(*, pin: bool | None) -> None:
    """Pinned, no copy keeps the host; not pinned, the values are the same."""
    card = open_card("cuda:0")
    up, down, compute = open_lane(card), open_lane(card), compute_of(card)
    with HostArena(SIZE, card, pin=pin) as arena:
        assert arena.pinned == arena.buffer.is_pinned() == (pin is None)
        rows = [arena.view(at * 4 * MIB, (1024, 1024), torch.float32) for at in range(8)]
        assert rows[3].is_pinned() is arena.pinned
        for row in rows:
            row.fill_(1)
        ring = list(torch.empty(2, 1024, 1024, device=card.device).unbind())
        sent = [compute.mark() for _ in ring]
        torch.cuda._sleep(100_000_000)

        def run() -> None:
            for number, row in enumerate(rows):
                slot = number % len(ring)
                up.wait(sent[slot])
                up.copy(ring[slot], row)
                compute.wait(up.mark())
                ring[slot].add_(number)
                down.wait(compute.mark())
                down.copy_back(row, ring[slot])
                down.mark(again=sent[slot])

        if pin is None:
            with waits_refused():
                run()
        else:
            run()
        up.drain()
        down.drain()
        assert [float(row.mean()) for row in rows] == [1.0 + at for at in range(8)]
    assert not rows[0].is_pinned()


def test_nothing_is_held_after_it() -> None:
    """Made and closed over and over, the process is no larger, and the next kernel runs."""
    card, process = open_card("cuda:0"), psutil.Process()
    HostArena(SIZE, card).close()
    before = process.memory_info().rss
    for _ in range(5):
        with HostArena(SIZE, card) as arena:
            assert arena.pinned
    del arena
    assert process.memory_info().rss - before < SIZE // 2
    assert float(torch.ones(8, device=card.device).sum()) == 8
