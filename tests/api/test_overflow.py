"""What streams lies on a second card: planned by the rates, the same bits, and all given back."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import TIGHT, call, roomy
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tightfit.api.annexes import peer_rate
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.testing import oom_after
from tightfit.units import GIB, KIB, MIB

WIDTH, LAYERS = 256, 16
LAYER = 4 * WIDTH * WIDTH


def network() -> nn.Module:
    """16 layers of 256 KiB."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).eval()


def inputs() -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))


def twice(module: nn.Module) -> torch.Tensor:
    """The result of the second call, on the host."""
    with torch.no_grad():
        module(inputs())
        value: torch.Tensor = module(inputs()).cpu()
    return value


def expected() -> torch.Tensor:
    """As everything on one card has it."""
    module = tightfit.fit(network(), card="virtual:1GiB")
    try:
        return twice(module)
    finally:
        tightfit.unfit(module)


@pytest.mark.parametrize("size", ["400KiB", "1500KiB", "64MiB"])
def test_a_module_larger_than_its_card_streams_from_another(size: str) -> None:
    """Bits, both budgets, and both cards empty afterwards; the plan has books for each."""
    one, two = virtual("64MiB"), virtual("64MiB")
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    tightfit.fit(module, card=one, vram="2MiB", overflow=two, overflow_vram=size)
    kept = tightfit.fitted(module)
    assert torch.equal(twice(module), expected())
    plan = kept.plan
    plan.check()
    room = int(size.removesuffix("KiB").removesuffix("MiB")) * (KIB if "K" in size else MIB)
    streamed = kept.session.residency.streamed_bytes
    assert kept.parked == two.read().allocated
    assert min(room, streamed) - LAYER < kept.parked <= streamed
    assert plan.parked[0] <= min(room, streamed)
    assert (one.read().peak_reserved or 0) <= 2 * MIB
    assert (two.read().peak_reserved or 0) <= room
    books = plan.as_dict()["annexe"]
    assert books["ledger"]["weights_parked"]["bytes"] == plan.parked[0]
    assert books["budget_bytes"] == room
    assert f"On {two.name}:" in kept.explain()
    state = module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in before.items())
    tightfit.unfit(module)
    for card in (one, two):
        assert_back(card)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


def test_the_plan_counts_with_the_rate_of_each_way() -> None:
    """Eight times as fast from the other card: the copies of a call take less by that."""
    seconds = {}
    for name, peer in (("slow", "1GB"), ("fast", "8GB")):
        one = virtual("64MiB,link=1MB")
        module = network()
        tightfit.fit(module, card=one, vram="1MiB", overflow=f"virtual:64MiB,peer={peer}")
        pace = tightfit.fitted(module).plan.stages[0].pace
        assert pace is not None
        seconds[name] = pace.copy_seconds
        moved = pace.moved_bytes
        tightfit.unfit(module)
    assert seconds["slow"] == pytest.approx(moved / 1e9)
    assert seconds["fast"] == pytest.approx(moved / 8e9)


def test_where_the_host_is_faster_nothing_lies_there() -> None:
    """It is said; the slower of two virtual cards counts."""
    one, two = virtual("64MiB,link=50GB,peer=1GB"), virtual("64MiB,peer=200GB")
    assert peer_rate(one, two).per_second == 1e9
    module = network()
    tightfit.fit(module, card=one, vram="1MiB", overflow=two)
    assert torch.equal(twice(module), expected())
    text = tightfit.fitted(module).explain()
    tightfit.unfit(module)
    assert (
        "nothing lies on virtual:64MiB,peer=200GB: it is copied from there at 953.7 MiB/s" in text
    )
    assert two.allocations == 0


def test_a_full_card_takes_nothing_from_the_other() -> None:
    """Out of memory where it computes: the ladder there makes room, and what lies here stays."""
    one, two = virtual("64MiB"), virtual("64MiB")
    module = tightfit.fit(network(), card=one, vram="2MiB", overflow=two)
    wanted = twice(module)
    kept = tightfit.fitted(module)
    with oom_after(one, 2):
        assert torch.equal(twice(module), wanted)
    assert kept.attempts
    assert two.read().allocated == kept.session.residency.streamed_bytes
    two.occupy((two.read().free or 0) - 10 * KIB)
    assert torch.equal(twice(module), wanted)
    tightfit.unfit(module)
    assert one.read().allocated == two.read().allocated == 0


def test_what_a_file_has_is_in_no_memory_of_the_host(tmp_path: Path) -> None:
    """From the file to the second card, and to the first from there."""
    save_file(network().state_dict(), tmp_path / "w.safetensors")
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    tightfit.load_weights(module.eval(), tmp_path / "w.safetensors")
    tightfit.fit(module, card="virtual:64MiB", vram="1MiB", overflow="virtual:64MiB")
    assert torch.equal(twice(module), expected())
    kept = tightfit.fitted(module)
    assert kept.session.host.arena_bytes == 0
    assert kept.parked == kept.session.residency.streamed_bytes
    tightfit.unfit(module)


def test_packed_weights_lie_there_as_well() -> None:
    """In fewer bytes."""
    module = network().to(torch.bfloat16)
    x = inputs().to(torch.bfloat16)
    two = virtual("64MiB")
    found = []
    for pack, other in (("off", None), ("on", two)):
        tightfit.fit(module, card="virtual:64MiB", vram="1MiB", pack=pack, overflow=other)
        with torch.no_grad():
            found.append(module(x).cpu())
        kept = tightfit.fitted(module)
        if other is not None:
            assert any(piece.packed for piece in kept.session.residency.streamed)
            assert 0 < kept.parked <= kept.session.residency.streamed_bytes
        tightfit.unfit(module)
    assert torch.equal(*found)
    assert_back(two)


def test_a_session_lends_a_part_of_one_card_to_another() -> None:
    """Its ledger says for whom; an eighth is left; `free` and a smaller budget take it back."""
    one, two = virtual("64MiB"), virtual("64MiB")
    wanted = expected()
    with tightfit.Session(cards=(one, two), vram="3MiB") as session:
        module = session.fit(network(), card=0, overflow=1)
        assert torch.equal(twice(module), wanted)
        held = two.read().allocated or 0
        assert 0 < held <= 3 * MIB * 7 // 8
        text = session.explain()
        assert "Sequential of virtual:64MiB (card 0): " in text
        assert " lie here, and are copied from here" in text
        other = session.fit(network(), card=1)
        assert torch.equal(twice(other), wanted)
        assert (two.read().peak_allocated or 0) <= 3 * MIB
        session.budget = "2MiB"
        assert torch.equal(twice(module), wanted)
        assert torch.equal(twice(other), wanted)
        assert (two.read().allocated or 0) <= 2 * MIB
        assert torch.equal(twice(module), wanted)
        session.free()
        assert two.read().allocated == one.read().allocated
        assert (two.read().allocated or 0) < KIB * 16
        assert torch.equal(twice(module), wanted)
        with pytest.raises(UsageError, match=r"overflow is .* itself"):
            session.fit(network(), card=1, overflow=1)
    for card in (one, two):
        assert_back(card)


def test_what_lies_there_makes_way_for_what_could_not_run_there() -> None:
    """Never for comfort: the other card's own model streams beside it, as long as it can."""
    one, two = virtual("64MiB"), virtual("64MiB")
    wanted = expected()
    with tightfit.Session(cards=(one, two), vram="3MiB") as session:
        module = session.fit(network(), card=0, overflow=1)
        assert torch.equal(twice(module), wanted)
        held = tightfit.fitted(module).parked
        assert held > 2 * MIB
        other = session.fit(network(), card=1)
        assert torch.equal(twice(other), wanted)
        assert tightfit.fitted(module).parked == held
        wide = torch.cat([inputs()] * 120)
        with torch.no_grad():
            assert torch.equal(other(wide).cpu()[:8], wanted)
        assert tightfit.fitted(module).parked == 0
        assert "`Sequential of virtual:64MiB (card 0)` streams from the host" in session.explain()
        assert torch.equal(twice(module), wanted)
        assert (two.read().peak_allocated or 0) <= 3 * MIB
    for card in (one, two):
        assert_back(card)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_networks_of_a_pipeline_stream_from_the_second_card() -> None:
    """With parts there of its own, or none; the latents are those of one card."""
    for cards in (1, 2):
        one, two = virtual(GIB), virtual(GIB)
        pipe: Any = tiny.flux()
        if cards == 1:
            tightfit.fit(pipe, card=one, vram=TIGHT["flux"], overflow=two, mode="none")
            assert torch.equal(call(pipe, "flux"), roomy("flux"))
            assert tightfit.fitted(pipe).networks["transformer"].parked
            assert f"on {two.name}" in tightfit.fitted(pipe).explain()
            tightfit.unfit(pipe)
        else:
            where = {"transformer": 0, "text_encoder_2": 1}
            with tightfit.Session(cards=(one, two), vram=TIGHT["flux"]) as session:
                session.fit(pipe, card=where, overflow=1, mode="none")
                assert torch.equal(call(pipe, "flux"), roomy("flux"))
                networks = session.fitted(pipe).networks
                assert networks["transformer"].parked
                assert not networks["text_encoder_2"].parked
        del pipe
        gc.collect()
        for card in (one, two):
            assert (card.read().peak_reserved or 0) <= (TIGHT["flux"] if cards == 2 else GIB)
            assert_back(card)


def test_an_overflow_that_cannot_be_meant_is_refused() -> None:
    """The card itself, another kind of card, and a size that it has not; nothing is placed."""
    card: VirtualCard = virtual("64MiB")
    module = network()
    for options, why in (
        ({"overflow": card}, "itself"),
        ({"overflow": "cpu"}, "from the host, or from another virtual card"),
        ({"overflow": "virtual:1MiB", "overflow_vram": "2MiB"}, "above what virtual:1MiB has"),
        ({"overflow": "virtual:nothing"}, "unknown"),
    ):
        with pytest.raises(UsageError, match=why):
            tightfit.fit(module, card=card, **options)
    with pytest.raises(UsageError, match="itself"):
        tightfit.fit(tiny.wan(), card=card, overflow=card)
    assert card.allocations == 0
    tightfit.unfit(tightfit.fit(module, card=card))
