"""O04, O05, O11 and O12 for fitted modules and pipelines: what an OOM leaves behind, and who goes
before anything is done in a worse way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import call, fitted_call, lora
from tests.cases.common import assert_back, virtual
from tests.loras import bytes_of, flux, given, inputs, load, wanted
from tests.pipelines import tiny
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage
from tightfit.testing import oom_after
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)

BLOCK = 12 * MIB
WIDTHS = (1536, 2048)


def codings(pipe: Any) -> list[tuple[str, str]]:
    """Rungs of decodes and what became of them, in order."""
    found = tightfit.fitted(pipe).codings
    return [(each.rung, each.outcome) for each in found if each.stage == "decode"]


# O04, O05


class SelfTiling(nn.Module):
    """The last layer of a VAE that tiles itself: it needs 2 MiB whatever it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scratch = x.new_zeros(2 * MIB // 4)
        result: torch.Tensor = self.inner(x)
        return result + scratch[0]


def test_o05_idle_networks_of_a_pipeline_go_before_its_vae_is_cut() -> None:
    """Their weights and the decode do not fit together: it is whole, and has the same bits."""
    whole = fitted_call("flux", virtual("1GiB"), vram=None, output="pt")
    pipe = tightfit.fit(tiny.flux(), card=virtual("1GiB"), vram=2000 * KIB)
    try:
        picture = call(pipe, "flux", output="pt")
        assert codings(pipe) == [("whole", "skipped"), ("evict idle models", "ok")]
        assert any("while `vae` runs" in note for note in tightfit.fitted(pipe).shelf.notes)
    finally:
        tightfit.unfit(pipe)
    assert torch.equal(picture, whole)


def test_o04_what_needs_the_same_in_tiles_has_the_others_freed_first() -> None:
    """A VAE that tiles itself: after the idle networks went, the same call holds."""
    pipe = tiny.flux()
    pipe.vae.decoder.conv_out = SelfTiling(pipe.vae.decoder.conv_out)
    whole = wanted_picture(pipe)
    tightfit.fit(pipe, card=virtual("1GiB"), vram=4400 * KIB)
    try:
        picture = call(pipe, "flux", output="pt")
        tries = codings(pipe)
        assert [rung for rung, _ in tries] == ["whole", "evict idle models"]
        assert tries[-1][1] == "ok"
    finally:
        tightfit.unfit(pipe)
    assert torch.equal(picture, whole)


def wanted_picture(pipe: Any) -> torch.Tensor:
    """On a card that has room for all."""
    tightfit.fit(pipe, card=virtual("1GiB"))
    try:
        return call(pipe, "flux", output="pt")
    finally:
        tightfit.unfit(pipe)


# O11


def stack(blocks: int = 5) -> nn.Sequential:
    """Blocks of 12 MiB."""
    torch.manual_seed(0)
    sizes = (WIDTHS if at % 2 == 0 else WIDTHS[::-1] for at in range(blocks))
    layers = (nn.Linear(*each, bias=False) for each in sizes)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def comes_at_the_fourth_block(card: VirtualCard, size: int) -> None:
    """Another program, which takes so much in the middle of a load."""
    blocks = 0

    def look(operator: str, wanted: int) -> None:
        nonlocal blocks
        del operator
        blocks += wanted >= BLOCK
        if blocks == 4:
            card.faults.on_allocate = None
            card.occupy(size)

    card.faults.on_allocate = look


@pytest.mark.parametrize("allocator", ["exact", "native"])
def test_o11_a_load_that_fails_half_way_leaves_nothing_and_the_next_is_whole(
    allocator: str,
) -> None:
    """Where all has to stay it is refused, and the same module is fitted again later."""
    module, x = stack(), torch.randn(2, WIDTHS[0])
    expected, card = module(x), virtual(f"68MiB,allocator={allocator}")
    comes_at_the_fourth_block(card, 26 * MIB)
    with pytest.raises(MemoryShortage, match="Not enough memory to"):
        tightfit.fit(module, card=card, mode="high", example=(x,))
    assert_back(card)
    assert torch.equal(module(x), expected)
    card.vacate(26 * MIB)
    tightfit.fit(module, card=card, mode="high", example=(x,))
    assert tightfit.fitted(module).session.resident_bytes == 5 * BLOCK
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    card.trim()  # the result's memory is in the allocator's cache
    assert_back(card)


def test_o11_where_it_may_stream_a_load_that_fails_half_way_is_made_with_less() -> None:
    """And all of it is there a few calls after the other program let go."""
    module, x = stack(), torch.randn(2, WIDTHS[0])
    expected, card = module(x), virtual("64MiB")
    comes_at_the_fourth_block(card, 24 * MIB)
    tightfit.fit(module, card=card, example=(x,))
    assert tightfit.fitted(module).session.resident_bytes < 4 * BLOCK
    assert torch.equal(module(x).cpu(), expected)
    card.vacate(24 * MIB)
    for _ in range(6):
        assert torch.equal(module(x).cpu(), expected)
    assert tightfit.fitted(module).session.resident_bytes == 5 * BLOCK
    tightfit.unfit(module)
    assert_back(card)


# O12


def patched(model: Any) -> None:
    """With a LoRA beside the weights, at seven tenths."""
    load(model, 5, "a")
    model.set_adapters("a", 0.7)


def fused(model: Any) -> None:
    """With the same in the weights."""
    load(model, 5, "a")
    model.fuse_lora(lora_scale=0.7)


def full(card: VirtualCard) -> None:
    """Another program takes all there is."""
    now = card.read()
    card.occupy(now.total - (now.allocated or 0) - 4 * KIB)


@pytest.mark.parametrize("change", [patched, fused])
@pytest.mark.parametrize("share", [0.2, 2])
def test_o12_after_an_oom_a_lora_is_applied_exactly_once(
    change: Callable[[Any], None], share: float
) -> None:
    """After one that was recovered from, and after one that ended the call; three times each."""
    expected, base = wanted(flux(), change), wanted(flux())
    assert not torch.equal(expected, base)
    meant = flux()
    change(meant)
    module, card = flux(), virtual("64MiB")
    budget = int(share * bytes_of(module)) + 400 * KIB
    tightfit.fit(module, card=card, vram=budget, example=inputs())
    change(module)
    assert torch.equal(given(module), expected)
    for after in (0, 3, 20):
        with oom_after(card, after):
            assert torch.equal(given(module), expected)
    assert tightfit.fitted(module).attempts
    for _ in range(3):
        assert torch.equal(given(module), expected)
    before = card.read().held_by_others
    full(card)
    with pytest.raises(MemoryShortage):
        given(module)
    card.vacate((card.read().held_by_others or 0) - (before or 0))
    for _ in range(3):
        assert torch.equal(given(module), expected)
    tightfit.unfit(module)
    assert_back(card)
    after_all = module.state_dict()
    for name, value in meant.state_dict().items():
        assert torch.equal(after_all[name], value), name


def test_o12_the_lora_of_a_pipeline_survives_an_oom_in_the_middle_of_its_loop() -> None:
    """Both pictures after it are those before it."""
    pytest.importorskip("peft")
    pipe, card = tiny.flux(), virtual("1GiB")
    tightfit.fit(pipe, card=card, vram=1700 * KIB)
    try:
        plain = call(pipe, "flux")
        pipe.load_lora_weights(lora(), adapter_name="a")
        pipe.set_adapters(["a"], [0.7])
        expected = call(pipe, "flux")
        assert not torch.equal(expected, plain)
        with oom_after(card, 400):
            assert torch.equal(call(pipe, "flux"), expected)
        assert any(each.attempts for each in tightfit.fitted(pipe).networks.values())
        for _ in range(2):
            assert torch.equal(call(pipe, "flux"), expected)
        pipe.unload_lora_weights()
        assert torch.equal(call(pipe, "flux"), plain)
    finally:
        tightfit.unfit(pipe)
