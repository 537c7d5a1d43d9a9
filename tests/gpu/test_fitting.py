"""`fit` on a real card: the bits, the bytes, and room that goes away between calls."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import tightfit
from tests.gpu.common import driver_calls
from tests.streaming import Net
from tightfit.card import open_card
from tightfit.place import placed
from tightfit.units import MIB

pytestmark = pytest.mark.gpu
WIDTH = 1024
KINDS = (0, 1, 0, 2, 3, 0) * 3
CALLS = 20


def network() -> tuple[Net, torch.Tensor]:
    """About 200 MiB, in blocks of 4 to 16 MiB, and inputs on the host."""
    torch.manual_seed(0)
    return Net(WIDTH, KINDS).eval().requires_grad_(False), torch.randn(64, WIDTH)


def bytes_of(module: Net) -> int:
    return sum(p.nbytes for p in {id(p): p for p in module.parameters()}.values())


def wanted(module: Net, x: torch.Tensor) -> torch.Tensor:
    """The result with everything on the card, whose library handles are there from then on."""
    with placed(module, "cuda"), torch.no_grad():
        result: torch.Tensor = module(x.cuda()).cpu()
    return result


def baseline() -> int:
    """Allocated now, with nothing that waits to be collected."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def half(module: Net) -> int:
    """A budget: half the weights beside what is held already, and room for slots and the call."""
    card = open_card("cuda")
    card.trim()
    held = card.read().reserved
    assert held is not None
    return held + bytes_of(module) // 2 + 48 * MIB


@contextmanager
def capped(size: int) -> Iterator[None]:
    """The process may reserve so many bytes, as if the rest of the card were somebody else's."""
    total = open_card("cuda").read().total
    assert total is not None
    before = torch.cuda.get_per_process_memory_fraction()
    try:
        torch.cuda.set_per_process_memory_fraction(size / total)
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


def test_every_call_gives_the_bits_of_the_resident_run_and_unfit_leaves_nothing() -> None:
    """Inputs on the host are brought to the card; the allocator stops growing after a few calls."""
    module, x = network()
    expected = wanted(module, x)
    before = baseline()
    with torch.no_grad():
        tightfit.fit(module, card="cuda", vram=half(module), example=(x,))
        residency = tightfit.fitted(module).session.residency
        assert residency.streamed
        assert residency.resident
        for at in range(CALLS):
            result = module(x)
            assert result.device.type == "cuda"
            assert torch.equal(result.cpu(), expected)
            if at == CALLS // 2:
                allocated, calls = baseline(), driver_calls()
        assert baseline() == allocated
        assert driver_calls() == calls
        copies = tightfit.fitted(module).session.copies
        assert copies.count > 0
        assert copies.grown == 0
        del result
        tightfit.unfit(module)
    assert baseline() == before
    assert all(p.device.type == "cpu" and not p.isnan().any() for p in module.parameters())


def test_a_card_that_shrinks_between_calls_makes_weights_leave_and_keeps_the_bits() -> None:
    """Nothing but the allocator says so: what does not fit any more is streamed."""
    module, x = network()
    expected = wanted(module, x)
    before = baseline()
    with torch.no_grad():
        tightfit.fit(module, card="cuda", vram=half(module) + bytes_of(module), example=(x,))
        fitted = tightfit.fitted(module)
        assert torch.equal(module(x).cpu(), expected)
        at_first = fitted.session.resident_bytes
        with capped(half(module) - fitted.session.bytes):
            for _ in range(3):
                assert torch.equal(module(x).cpu(), expected)
            assert fitted.session.resident_bytes < at_first
            assert len(fitted.changes) > 1
        assert torch.equal(module(x).cpu(), expected)
        tightfit.unfit(module)
    assert baseline() == before


def test_a_call_that_runs_out_of_memory_is_made_again_with_the_same_bits() -> None:
    """The room is taken in mid-call, when the fit has looked already."""
    module, x = network()
    expected = wanted(module, x)
    before = baseline()
    taken: list[torch.Tensor] = []
    with torch.no_grad():
        tightfit.fit(module, card="cuda", vram=half(module), example=(x,))
        assert torch.equal(module(x).cpu(), expected)
        fitted = tightfit.fitted(module)

        def fail_once(*_: object) -> None:
            if not taken:
                taken.append(torch.zeros(1))
                with capped(MIB):
                    torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")

        handle = module.blocks[2].register_forward_pre_hook(fail_once)
        assert torch.equal(module(x).cpu(), expected)
        handle.remove()
        assert taken
        assert fitted.notes
        assert torch.equal(module(x).cpu(), expected)
        tightfit.unfit(module)
    assert baseline() == before
