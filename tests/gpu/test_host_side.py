"""Streaming on a real card from memory that is not pinned, and from files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.streaming import Case, Net
from tightfit.card import open_card
from tightfit.errors import InputError
from tightfit.place import placed
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.masters import Masters, Wish
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import streamed
from tightfit.units import GIB, MIB

pytestmark = pytest.mark.gpu
WIDTH = 1024
RUNS = 20


def network(path: Path) -> tuple[Net, Case, torch.Tensor]:
    """Blocks of 8 to 16 MiB, mapped from a file; the last layer is tied to the first."""
    torch.manual_seed(0)
    module = Net(WIDTH, (0, 1, 0, 2, 3, 0)).eval().requires_grad_(False)
    state = module.state_dict()
    del state["last.weight"]
    save_file(state, path)
    module.load_state_dict(load_file(path), strict=False, assign=True)
    module.last.weight = module.first.weight
    x = torch.randn(64, WIDTH)
    return module, Case.of(module, lambda: module(x)), x


def wanted(module: Net, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    with placed(module, "cuda"), torch.no_grad():
        return call().cpu()


def sources(name: str) -> tuple[Pins | None, int | None]:
    """Pins, and room on the host, by the name of the way."""
    ways: dict[str, tuple[Pins | None, int | None]] = {
        "nothing pinned": (None, None),
        "buffers pinned": (Pins.cuda(14 * MIB), None),
        "some pinned": (Pins.cuda(40 * MIB), None),
        "all pinned": (Pins.cuda(GIB), None),
        "all in files": (Pins.cuda(GIB), 0),
        "all in files, nothing pinned": (None, 0),
        "some in files": (Pins.cuda(GIB), 140 * MIB),
        "some in files, some pinned": (Pins.cuda(40 * MIB), 70 * MIB),
    }
    return ways[name]


def twice(module: Net, inputs: torch.Tensor) -> None:
    """What is copied already when a file changes may do for one call."""
    module(inputs)
    module(inputs)


WAYS = (
    "nothing pinned",
    "buffers pinned",
    "some pinned",
    "all pinned",
    "all in files",
    "all in files, nothing pinned",
    "some in files",
    "some in files, some pinned",
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_kind_of_host_memory_gives_the_bits_of_the_resident_one(
    tmp_path: Path, way: str, slots: int
) -> None:
    """20 runs, one after the other without a stop; nothing is allocated, pinned or left after."""
    module, case, x = network(tmp_path / "weights.safetensors")
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    before, threads = card.read().allocated, set(threading.enumerate())
    pins, host = sources(way)
    residency = case.everything("block", slots, lambda _: False)
    with (
        streamed(
            module, card, residency, case.blocks, order=case.order, pins=pins, host=host
        ) as session,
        torch.no_grad(),
    ):
        assert bool(session.host.filed_bytes) == ("files" in way)
        assert bool(session.host.arena_bytes) == (not way.startswith("all in files"))
        if pins is not None:
            assert 0 < pins.bytes <= pins.budget
        for _ in range(3):
            module(inputs)
        torch.cuda.synchronize()
        allocated = card.read().allocated
        results = [module(inputs) for _ in range(RUNS)]
        assert all(torch.equal(result.cpu(), expected) for result in results)
        del results
        assert card.read().allocated == allocated
        assert session.copies.grown == 0
    assert pins is None or pins.bytes == 0
    assert set(threading.enumerate()) <= threads
    assert card.read().allocated == before
    assert torch.equal(wanted(module, lambda: module(inputs)), expected)


@pytest.mark.parametrize("way", WAYS)
def test_every_copy_is_its_master(tmp_path: Path, way: str) -> None:
    """Byte for byte, each time."""
    module, case, x = network(tmp_path / "weights.safetensors")
    card, inputs = open_card("cuda"), x.cuda()
    pins, host = sources(way)
    residency = case.everything("leaf", 2, lambda _: False)
    with (
        streamed(
            module,
            card,
            residency,
            case.blocks,
            order=case.order,
            pins=pins,
            host=host,
            compares=True,
        ),
        torch.no_grad(),
    ):
        for _ in range(3):
            module(inputs)


def test_a_master_larger_than_all_buffers_passes_them_many_times(tmp_path: Path) -> None:
    """Slots are filled anew while the device still computes with others."""
    card, pins = open_card("cuda"), Pins.cuda(GIB)
    tensors = [torch.randn(24 * MIB) for _ in range(3)]
    path = tmp_path / "weights.safetensors"
    save_file({str(at): tensor for at, tensor in enumerate(tensors)}, path)
    host = Masters(card, pins=pins, room=0)
    masters = [host.take(Wish.of([tensor])) for tensor in load_file(path).values()]
    assert host.filed_bytes == 3 * 96 * MIB
    assert 0 < pins.bytes <= 64 * MIB
    slots = [torch.zeros(96 * MIB, dtype=torch.uint8, device=card.device) for _ in range(2)]
    free = [host.compute.mark() for _ in slots]
    ready = [None, None]
    wrong = torch.zeros((), dtype=torch.int64, device=card.device)
    references = [tensor.cuda() for tensor in tensors]
    for turn in range(12):
        at, of = turn % 2, turn % 3
        host.lane.wait(free[at])
        masters[of].send(host.lane, slots[at])
        ready[at] = host.lane.mark(again=ready[at])
        host.compute.wait(ready[at])
        wrong += (slots[at].view(torch.float32) != references[of]).sum()
        free[at] = host.compute.mark(again=free[at])
    assert int(wrong) == 0
    host.stop()
    host.lane.drain()
    host.close()
    assert pins.bytes == 0


def test_a_file_that_changed_is_told_and_the_card_stays_usable(tmp_path: Path) -> None:
    """No sticky error: the next kernel runs, and everything is given back."""
    path = tmp_path / "weights.safetensors"
    module, case, x = network(path)
    card, inputs = open_card("cuda"), x.cuda()
    expected = wanted(module, lambda: module(inputs))
    before, pins, now = card.read().allocated, Pins.cuda(GIB), path.stat()
    residency = case.everything("block", 2, lambda _: False)
    with (
        streamed(
            module, card, residency, case.blocks, order=case.order, pins=pins, host=0
        ) as session,
        torch.no_grad(),
    ):
        assert torch.equal(module(inputs).cpu(), expected)
        os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))
        with pytest.raises(InputError, match="has changed"):
            twice(module, inputs)
        assert session.copies.grown == 0
    assert torch.equal((inputs + 1).cpu(), x + 1)
    assert pins.bytes == 0
    assert card.read().allocated == before
    assert torch.equal(wanted(module, lambda: module(inputs)), expected)


def test_an_interrupt_while_the_worker_copies_leaves_nothing_behind(tmp_path: Path) -> None:
    """The session ends with it."""
    module, case, x = network(tmp_path / "weights.safetensors")
    card, inputs = open_card("cuda"), x.cuda()
    before, pins, threads = card.read().allocated, Pins.cuda(40 * MIB), set(threading.enumerate())
    residency = case.everything("block", 2, lambda _: False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with (
            streamed(
                module, card, residency, case.blocks, order=case.order, pins=pins, host=70 * MIB
            ),
            torch.no_grad(),
        ):
            module(inputs)
            module.blocks[2].up.register_forward_hook(interrupt)
            module(inputs)

    with pytest.raises(KeyboardInterrupt):
        run()
    module.blocks[2].up._forward_hooks.clear()
    assert pins.bytes == 0
    assert set(threading.enumerate()) <= threads
    assert card.read().allocated == before


def test_pinned_memory_is_really_held_in_its_own_size() -> None:
    """33 MiB and 20 of 5 under a budget of 120: 118 of them, and nothing afterwards."""
    pins = Pins.cuda(120 * MIB)
    tensors = [torch.zeros(size * MIB, dtype=torch.uint8) for size in (33, *[5] * 20)]
    arenas = [Arena(Layout.of([tensor]), [tensor]) for tensor in tensors]
    held = [pins.hold(arena.buffer) for arena in arenas]
    assert [arena.buffer.is_pinned() for arena in arenas] == held
    assert held.count(True) == 18
    assert pins.asked == pins.bytes == 118 * MIB
    for arena in arenas:
        pins.release(arena.buffer)
    assert pins.bytes == 0
    assert not any(arena.buffer.is_pinned() for arena in arenas)
