"""Streaming from every kind of host memory: with the same bits, and nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.streaming import Case, Net, resident
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import InputError
from tightfit.place.streaming.masters import Masters, Wish
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.stage import Stage
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.units import KIB, MIB
from tightfit.weigh import weights

KINDS = (0, 1, 0, 2, 3, 0)
WIDTH = 48


class Driver:
    """Refuses at random, and knows what it holds."""

    def __init__(self, refuses: int = 0) -> None:
        self.held: dict[int, int] = {}
        self._refuses = refuses
        self._asked = 0

    def pins(self, budget: int) -> Pins:
        return Pins(budget, register=self._register, unregister=self.held.pop)

    def _register(self, address: int, size: int) -> bool:
        self._asked += 1
        if self._refuses >> (self._asked % 60) & 1:
            return False
        assert address not in self.held
        self.held[address] = size
        return True


def mapped(path: Path, *, kinds: tuple[int, ...] = KINDS, seed: int = 3) -> Net:
    """A network whose weights are views of a file, but for a buffer that is in none."""
    torch.manual_seed(seed)
    module = Net(WIDTH, kinds).eval().requires_grad_(False)
    state = module.state_dict()
    del state["last.weight"]
    save_file(state, path)
    module.load_state_dict(load_file(path), strict=False, assign=True)
    module.last.weight = module.first.weight
    return module


@contextmanager
def session(
    module: Net, card: VirtualCard, *, pins: Pins | None = None, host: int | None = None
) -> Iterator[Streaming]:
    """All streams; afterwards the module is whole, and neither threads nor handles are left."""
    case = Case.of(module, lambda: module(torch.zeros(1, WIDTH)))
    before = {held.path: held.tensor.clone() for held in weights(module)}
    threads, handles = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    card.faults.lanes = "strict"
    residency = case.everything("block", 2, lambda _: False)
    try:
        with (
            streamed(
                module, card, residency, case.blocks, order=case.order, pins=pins, host=host
            ) as found,
            torch.no_grad(),
        ):
            yield found
    finally:
        assert set(threading.enumerate()) <= threads
        assert len(os.listdir("/proc/self/fd")) == handles
        after = {held.path: held.tensor for held in weights(module)}
        assert all(torch.equal(after[path], value) for path, value in before.items())
        assert not module._forward_pre_hooks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Net:
    return mapped(tmp_path_factory.mktemp("files") / "weights.safetensors")


@given(st.integers(0, 300), st.integers(0, 2**60), st.none() | st.integers(0, 500))
def test_any_pins_and_any_memory_give_the_same_bits(
    shared: Net, pinned: int, refuses: int, room: int | None
) -> None:
    """Whatever the driver refuses; never more is held than may be, and nothing afterwards."""
    module, card, x, driver = shared, virtual("16MiB"), torch.randn(2, WIDTH), Driver(refuses)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    pins, before = driver.pins(pinned * KIB), module.state_dict()
    with session(module, card, pins=pins, host=None if room is None else room * KIB) as found:
        for _ in range(2):
            assert torch.equal(module(x).cpu(), wanted)
        assert found.copies.grown == 0
        assert pins.asked == sum(driver.held.values()) <= pins.bytes <= pins.budget
        state = module.state_dict()
        assert all(torch.equal(state[name], value) for name, value in before.items())
    assert not driver.held
    assert pins.bytes == 0
    assert_back(card)


@pytest.mark.parametrize("room", [0, 60, 350, 10_000])
def test_no_more_is_taken_than_there_is_room_for(path: Path, room: int) -> None:
    """The rest is read from the file for each use, spread over the order of use."""
    module, card = mapped(path, kinds=(0,) * 8), virtual("16MiB")
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with session(module, card, host=room * KIB) as found:
        assert torch.equal(module(x).cpu(), wanted)
        masters = [found._placement.store.take(group) for group in found.groups]
        assert found.host.arena_bytes <= room * KIB
        assert bool(found.host.filed_bytes) == (room < 10_000)
        if room == 350:
            kinds = "".join("f" if master.whole is None else "m" for master in masters)
            assert 2 <= kinds.count("m") < len(kinds)
            assert max(map(len, kinds.split("m"))) <= 3
    assert_back(card)


def test_memory_of_our_own_stays_bounded(path: Path) -> None:
    """48 MiB of weights with room for 16: what is really taken, beside the card's own slots."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12)))
    save_file(module.state_dict(), path)
    module.load_state_dict(load_file(path), assign=True)
    case, card = Case.of(module, lambda: module(torch.zeros(1, 1024))), virtual("64MiB")
    x = torch.randn(1, 1024)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    residency = case.everything("block", 2, lambda _: False)
    before = anonymous()
    with (
        streamed(module, card, residency, case.blocks, host=16 * MIB) as found,
        torch.no_grad(),
    ):
        for _ in range(2):
            assert torch.equal(module(x).cpu(), wanted)
        assert found.host.filed_bytes >= 36 * MIB
        assert anonymous() - before <= 16 * MIB + found.ring_bytes + 6 * MIB


def anonymous() -> int:
    """Bytes of memory that belong to no file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * KIB
    raise AssertionError


def test_weights_that_were_changed_in_memory_are_not_read_from_their_file(path: Path) -> None:
    """A mapping that was written to keeps what was written."""
    module, card = mapped(path), virtual("16MiB")
    module.blocks[2].up.weight.mul_(2)
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with session(module, card, host=0):
        assert torch.equal(module(x).cpu(), wanted)


def test_weights_of_no_file_are_streamed_from_where_they_are(path: Path) -> None:
    """Also those with gaps, for which a copy is made, if there is room for it."""
    torch.manual_seed(0)
    module, card = Net(WIDTH, KINDS).eval().requires_grad_(False), virtual("16MiB")
    module.blocks[0].up.weight.data = torch.randn(2 * WIDTH, 2 * WIDTH)[:, ::2]
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with session(module, card, host=20 * KIB) as found:
        assert torch.equal(module(x).cpu(), wanted)
        assert found.host.filed_bytes == 0


@pytest.mark.parametrize("how", ["cut", "written", "unreadable"])
@pytest.mark.parametrize("pinned", [0, 100])
def test_a_file_that_fails_is_told_in_the_call_and_leaves_the_module_whole(
    path: Path, how: str, pinned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, again and again; what does not need it goes on."""
    module, card, driver = mapped(path), virtual("16MiB"), Driver()
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    whole, read = path.read_bytes(), os.preadv
    with session(module, card, pins=driver.pins(pinned * KIB), host=0):
        assert torch.equal(module(x).cpu(), wanted)
        if how == "unreadable":
            monkeypatch.setattr(os, "preadv", refuse)
        else:
            change(path, whole[:-8] if how == "cut" else whole[:-8] + bytes(8))
        for _ in range(3):
            with pytest.raises(InputError, match=r"weights\.safetensors`"):
                twice(module, x)
        if how == "unreadable":
            monkeypatch.setattr(os, "preadv", read)
            for _ in range(2):
                assert torch.equal(module(x).cpu(), wanted)
        else:
            change(path, whole)
            with pytest.raises(InputError, match="has changed"):
                twice(module, x)
    assert not driver.held
    assert_back(card)


def twice(module: nn.Module, x: torch.Tensor) -> None:
    """What is copied already when something goes wrong may do for one call."""
    module(x)
    module(x)


def refuse(*_: object) -> int:
    raise OSError(5, "Input/output error")


def change(path: Path, content: bytes) -> None:
    """Write over a file, some time later than it was written last."""
    now = path.stat()
    with path.open("r+b") as file:
        file.truncate(len(content))
        file.write(content)
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))


class Stops(nn.Module):
    """Interrupts when it is told to."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        if self.error is not None:
            raise self.error
        return x


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
@pytest.mark.parametrize("inside", [True, False])
def test_an_interrupt_in_mid_call_leaves_no_thread_and_nothing_held(
    path: Path, error: type[BaseException], inside: bool
) -> None:
    """Whether the session goes on or ends with it."""
    module, card, driver = mapped(path, kinds=(0,) * 6), virtual("16MiB"), Driver()
    module.blocks[2] = stops = Stops(module.blocks[2])
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))

    def run() -> None:
        with session(module, card, pins=driver.pins(60 * KIB), host=100 * KIB):
            for _ in range(2 if inside else 0):
                stops.error = error
                with pytest.raises(error):
                    module(x)
                stops.error = None
                assert torch.equal(module(x).cpu(), wanted)
            stops.error = error
            module(x)

    with pytest.raises(error):
        run()
    assert not driver.held
    assert_back(card)


def test_an_interrupt_while_weights_are_waited_for_makes_no_wrong_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes to the thread that waits for the worker; the next call is right."""
    module, card = mapped(path), virtual("16MiB")
    x = torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with session(module, card, host=0):
        for at in range(1, 20):
            with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                patch.setattr(Stage, "_await", interrupted_at(at))
                twice(module, x)
            assert torch.equal(module(x).cpu(), wanted)
    assert_back(card)


def interrupted_at(at: int) -> Callable[[Stage, int], None]:
    """Ctrl-C at so many waits, before it or after."""
    left, wait = [at], Stage._await

    def interrupted(self: Stage, number: int) -> None:
        left[0] -= 1
        if left[0] or at % 2:
            wait(self, number)
        if not left[0]:
            raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("room", [0, 350])
def test_what_is_in_files_can_change_its_place(path: Path, room: int) -> None:
    """Onto the card, off it, and at another level: read from where it always was."""
    module, card, driver = mapped(path), virtual("16MiB"), Driver()
    case, x = Case.of(module, lambda: module(torch.zeros(1, WIDTH))), torch.randn(2, WIDTH)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with session(module, card, pins=driver.pins(50 * KIB), host=room * KIB) as found:
        for level, stays in (("block", 2), ("leaf", 3), ("leaf", 2), ("block", 9)):
            found.change(case.everything(level, 2, lambda at, every=stays: at % every == 1))
            for _ in range(2):
                assert torch.equal(module(x).cpu(), wanted)
            assert found.host.arena_bytes <= room * KIB
            assert found.host.filed_bytes + found.host.arena_bytes >= found.ring_bytes // 2
            assert sum(driver.held.values()) <= 50 * KIB
    assert not driver.held
    assert_back(card)


def test_masters_that_are_released_are_copied_by_the_worker(path: Path) -> None:
    """And pinned again at once; one that was never asked for is none."""
    driver, card = Driver(), virtual("16MiB")
    host = Masters(card, pins=driver.pins(MIB))
    tensors = (torch.randn(1000), torch.randn(7))
    wish = Wish.of(tensors)
    master = host.take(wish)
    assert master.pinned
    for held in (False, True):
        (host.pin if held else host.release)(master)
        assert master.pinned == held
        target = torch.zeros(master.layout.bytes, dtype=torch.uint8, device=card.device)
        host.lane.wait(host.compute.mark())
        master.send(host.lane, target)
        host.compute.wait(host.lane.mark())
        found = master.layout.views(target)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, tensors, strict=True))
    host.stop()
    host.release(master)
    host.close()
    assert not driver.held
