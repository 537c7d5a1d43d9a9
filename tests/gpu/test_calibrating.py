"""What a CUDA card lets us see of single allocations, and what is learnt from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightfit.card import open_card
from tightfit.run.calibrating import calibrated, watch
from tightfit.weigh.calibration import Calibration
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.workspace import CUDA, peak_of, sequence

pytestmark = pytest.mark.gpu


def _net() -> nn.Module:
    layers = [nn.Conv2d(64, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1)]
    return nn.Sequential(*layers).eval().requires_grad_(False).to(torch.bfloat16)


def _dry(side: int) -> DryRun:
    net = _net().to("meta")
    source = torch.empty(1, 64, side, side, dtype=torch.bfloat16, device="meta")
    return dry_run(lambda: net(source))


def test_moves_add_up_to_what_is_held_afterwards() -> None:
    """Allocations and frees in order; or None, where the allocator keeps no history."""
    card = open_card("cuda:0")
    card.sync()
    before = card.read().allocated
    with card.moves() as moves:
        kept = torch.zeros(1 << 20, device=card.device)
        gone = torch.zeros(1 << 21, device=card.device)
        del gone
    assert before is not None
    if card.allocator == "async":
        assert moves is None
        return
    assert moves is not None
    held = card.read().allocated
    assert held is not None
    assert len(moves) == 3
    assert abs(sum(moves) - (held - before)) <= 512
    del kept


def test_a_users_own_history_is_left_alone() -> None:
    """It goes on, and we see nothing."""
    card = open_card("cuda:0")
    if card.allocator == "async":
        pytest.skip("cudaMallocAsync keeps no history")
    torch.cuda.memory._record_memory_history()
    try:
        with card.moves() as moves:
            kept = torch.zeros(1 << 20, device=card.device)
        assert moves is None
        snapshot = torch.cuda.memory._snapshot()
        assert any(entry["action"] == "alloc" for entry in snapshot["device_traces"][0])
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del kept


def test_one_small_run_predicts_a_large_one_within_three_per_cent() -> None:
    """Two convolutions at 256x256, then at 1024x1024."""
    card = open_card("cuda:0")
    net = _net().to(card.device)
    known = Calibration()
    for side in (256, 1024):
        source = torch.zeros(1, 64, side, side, dtype=torch.bfloat16, device=card.device)
        with torch.no_grad():
            net(source)  # the libraries' own workspaces are made once
            seen = watch(card, _dry(side), lambda source=source: net(source))
        assert seen.measured is not None
        if side == 1024:
            spaces = CUDA if not known.shares else type(CUDA)(learnt=known.shares)
            predicted = known.corrected(peak_of(sequence(_dry(side), spaces)))
            assert predicted == pytest.approx(seen.measured, rel=0.03)
        known = calibrated(known, _dry(side), seen, samples=side * side, table=CUDA)
