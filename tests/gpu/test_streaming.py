"""Streaming on a real card: the bits, the bytes and the waits."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from tests.gpu.common import driver_calls, waits_refused
from tests.streaming import Case, Net
from tightfit.card import open_card
from tightfit.place import placed
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.streaming.pieces import Level
from tightfit.units import GIB, MIB

pytestmark = pytest.mark.gpu
WIDTH = 1024
TICK = 2e-6
"""Seconds that two of the card's clock readings may be apart for nothing."""


def network() -> tuple[Net, Case, torch.Tensor]:
    """Blocks of 8 to 16 MiB, so that copies take as long as compute."""
    torch.manual_seed(0)
    module, x = Net(WIDTH, (0, 1, 0, 2, 3, 0)).eval().requires_grad_(False), torch.randn(64, WIDTH)
    return module, Case.of(module, lambda: module(x)), x


def wanted(module: Net, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    with placed(module, "cuda"), torch.no_grad():
        return call().cpu()


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("level", ["block", "leaf"])
def test_w07_fifty_runs_give_the_bits_of_the_resident_one(level: Level, pinned: bool) -> None:
    """From pinned masters and from others; nothing is allocated, nothing is left."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    before = card.read().allocated
    pins = Pins.cuda(GIB) if pinned else Pins.none()
    residency = case.everything(level, 2, lambda at: at % 3 == 2)
    with (
        streamed(module, card, residency, case.blocks, order=case.order, pins=pins) as session,
        torch.no_grad(),
    ):
        assert bool(session.pinned_bytes) == pinned
        for _ in range(3):
            module(inputs)
        allocated = card.read().allocated
        results = [module(inputs) for _ in range(50)]
        assert all(torch.equal(result.cpu(), expected) for result in results)
        del results
        assert card.read().allocated == allocated
        assert session.copies.grown == 0
    assert pins.bytes == 0
    assert card.read().allocated == before


def test_calls_in_different_streams_come_one_after_another() -> None:
    """A slot is not filled anew while another stream reads it."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    residency = case.everything("block", 2, lambda _: False)
    with streamed(module, card, residency, case.blocks, order=case.order), torch.no_grad():
        for at in range(30):
            with torch.cuda.stream(streams[at % 3]):
                results.append(module(inputs))
        torch.cuda.synchronize()
    assert all(torch.equal(result.cpu(), expected) for result in results)


def test_an_interrupt_in_a_block_leaves_the_module_usable() -> None:
    """The next call is right, and the end gives everything back."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    before = card.read().allocated
    residency = case.everything("block", 2, lambda _: False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with streamed(module, card, residency, case.blocks, order=case.order), torch.no_grad():
        hook = module.blocks[2].up.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            module(inputs)
        hook.remove()
        assert torch.equal(module(inputs).cpu(), expected)
    gc.collect()  # the frames that the interrupt passed hold values on the card
    assert card.read().allocated == before


@pytest.mark.parametrize("traces", [False, True])
@pytest.mark.parametrize("level", ["block", "leaf"])
def test_in_steady_state_the_host_never_waits(level: Level, traces: bool) -> None:
    """PyTorch, told to raise on a synchronisation, has no cause to; the driver is not asked."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    residency = case.everything(level, 2, lambda at: at % 3 == 2)
    with (
        streamed(
            module,
            card,
            residency,
            case.blocks,
            order=case.order,
            pins=Pins.cuda(GIB),
            traces=traces,
        ) as session,
        torch.no_grad(),
    ):
        for _ in range(3):
            module(inputs)
        card.sync()
        before, late = driver_calls(), session.copies.late
        with waits_refused():
            for _ in range(3):
                result = module(inputs)
        assert (driver_calls(), session.copies.late) == (before, late)
        assert torch.equal(result.cpu(), expected)


def test_a_step_tells_its_time_its_limit_and_its_waits() -> None:
    """By the card's own clock: what was waited for and what was computed is all of the step."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    residency = case.everything("block", 2, lambda _: False)
    with (
        streamed(
            module,
            card,
            residency,
            case.blocks,
            order=case.order,
            pins=Pins.cuda(GIB),
            traces=True,
        ) as session,
        torch.no_grad(),
    ):
        for _ in range(5):
            module(inputs)
        step = session.steps[-1]
        assert session.steps[-1] == step
    assert 0 < step.moved_bytes <= sum(group.layout.bytes for group in session.groups)
    assert step.seconds is not None
    assert step.stall_seconds is not None
    assert step.copy_seconds is not None
    assert step.link_rate is not None
    assert 0 <= step.stall_seconds < step.seconds
    assert step.copy_seconds > 0
    assert 100 * MIB < step.link_rate < 1024 * GIB
    for block in (block for block in step.blocks if block.moved_bytes):
        assert block.copy_start is not None
        assert block.copy_end is not None
        assert block.start is not None
        assert block.copy_start < block.copy_end
        assert block.copy_end <= block.start + TICK


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, about itself
def test_compiled_blocks_give_the_bits_of_resident_ones() -> None:
    """Nothing is compiled again for a slot or a step."""
    module, case, x = network()
    card, inputs = open_card("cuda"), x.cuda()
    for block in module.blocks:
        block.compile(backend="aot_eager")
    expected = wanted(module, lambda: module(inputs))
    residency = case.everything("block", 2, lambda at: at % 3 == 2)
    with streamed(module, card, residency, case.blocks, order=case.order), torch.no_grad():
        module(inputs)
        with torch.compiler.set_stance("fail_on_recompile"):
            for _ in range(4):
                assert torch.equal(module(inputs).cpu(), expected)
    torch._dynamo.reset()
