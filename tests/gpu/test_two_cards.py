"""D01, D06 and a second card for what streams, on two real cards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.cases.d01 import JOBS
from tightfit.api.annexes import peer_rate
from tightfit.card import open_card
from tightfit.place.lanes import compute_of, open_lane
from tightfit.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA cards"),
]
WIDTH, LAYERS = 2048, 12


def network() -> nn.Module:
    """12 layers of 16 MiB."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).eval()


@pytest.mark.parametrize("job", JOBS)
def test_d01_no_context_is_made_on_the_first_card(job: str) -> None:
    """In a process of its own, since others of this one may have made one."""
    command = [sys.executable, "-m", "tests.cases.d01", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_lane_copies_from_another_card() -> None:
    """With the bytes that are there, in its own stream."""
    one, two = open_card("cuda:0"), open_card("cuda:1")
    source = torch.randint(0, 255, (16 * MIB,), dtype=torch.uint8, device=two.device)
    target = torch.zeros_like(source, device=one.device)
    torch.cuda.synchronize(two.device)
    lane = open_lane(one)
    lane.wait(compute_of(one).mark())
    lane.copy_peer(target, source)
    compute_of(one).wait(lane.mark())
    assert torch.equal(target.cpu(), source.cpu())
    lane.drain()
    assert (peer_rate(one, two).per_second or 0) > 1e9


def test_what_streams_from_a_second_card_has_the_bits_of_the_resident() -> None:
    """Both budgets are kept, and both cards are as they were afterwards."""
    one, two = open_card("cuda:0"), open_card("cuda:1")
    x = torch.randn(64, WIDTH)
    module = network()
    with torch.no_grad():
        tightfit.fit(module, card=one, mode="high")
        expected = module(x).cpu()
        tightfit.unfit(module)
        before = [card.read().allocated for card in (one, two)]
        tightfit.fit(module, card=one, mode="none", overflow=two, overflow_vram="160MiB")
        values = [module(x).cpu() for _ in range(20)]
        kept = tightfit.fitted(module)
        if kept.terms.annexe is not None and kept.terms.annexe.first:
            assert 0 < kept.parked <= 160 * MIB
        assert (two.read().reserved or 0) <= 160 * MIB
        tightfit.unfit(module)
    assert all(torch.equal(value, expected) for value in values)
    for card in (one, two):
        card.trim()
    assert [card.read().allocated for card in (one, two)] == before


def test_d06_two_cards_have_one_master_of_a_file(tmp_path: Path) -> None:
    """Pinned once, for both."""
    path, x = tmp_path / "w.safetensors", torch.randn(4, WIDTH)
    save_file(network().state_dict(), path)
    with tightfit.Session(cards="cuda:0,cuda:1") as session, torch.no_grad():
        modules = [tightfit.load_weights(network(), path) for _ in range(2)]
        for at, module in enumerate(modules):
            session.fit(module, card=at, mode="none")
        values = [module(x).cpu() for module in modules]
        streams = [tightfit.fitted(module).session for module in modules]
        stores = [each._placement.store._stored.values() for each in streams]
        where = [{each.master.buffer.data_ptr() for each in store} for store in stores]
        assert where[0] == where[1]
    assert torch.equal(*values)
