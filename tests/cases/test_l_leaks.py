"""Group L: what stays is found with who holds it, and what does not stay is not accused."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.watch.leaks.planted import NAME, program
from tightfit.api.work import Watching
from tightfit.card import Card, open_card
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.testing import faults, toy_vae
from tightfit.units import KIB, MIB
from tightfit.watch import Recorder
from tightfit.watch.leaks import Hold, Rounds

ROOM = 64 * MIB


@pytest.fixture
def state() -> Iterator[Any]:
    """The module `mypkg.state` of somebody's program."""
    with program() as module:
        yield module


def tiny_linear(device: torch.device) -> None:
    """One, and all of it dropped."""
    layer = nn.Linear(64, 64, device=device)
    with torch.no_grad():
        layer(torch.zeros(4, 64, device=device))


def assert_only_a_workspace(card: Card, run: Any, state: Any) -> int:
    """No leak at any run, and no growth after the first; a leak beside it is found.

    Bytes that the first run left.
    """
    grew: list[int] = []
    for at in range(10):
        with tightfit.leakcheck(card) as check:
            run()
        assert check.leaks == ()
        assert check.found is not None
        if at:
            assert not any(check.found.workspaces.values())
        grew.append(sum(check.found.workspaces.values()))
    with tightfit.leakcheck(card, report_only=True) as check:
        run()
        state.kept = torch.zeros(MIB // 4, device=card.device)
    assert check.leaks is not None
    (leak,) = check.leaks
    assert (leak.bytes, leak.path) == (
        MIB,
        f"module {NAME} → kept → Tensor [262144] float32, 1.0 MiB",
    )
    return grew[0]


def test_l01_a_library_workspace_is_no_leak_and_a_leak_beside_it_is_found(state: Any) -> None:
    """A stand-in takes 8 MiB with the first product and keeps them, as cuBLAS does."""
    card = virtual(ROOM)
    workspaces: list[Any] = []

    def run() -> None:
        if not workspaces:
            workspaces.append(card.charge(8 * MIB, "workspace"))
        tiny_linear(card.device)

    assert assert_only_a_workspace(card, run, state) == 8 * MIB
    card.discharge(workspaces.pop())


@pytest.mark.gpu
def test_l01_the_workspace_of_cublas_is_no_leak_and_a_leak_beside_it_is_found(state: Any) -> None:
    """Each stream has one of its own, which comes with the first product on it."""
    card = open_card("cuda:0")
    stream = torch.cuda.Stream()

    def run() -> None:
        with torch.cuda.stream(stream):
            tiny_linear(card.device)
            torch.mm(*[torch.zeros(64, 64, device=card.device)] * 2)
        stream.synchronize()

    assert_only_a_workspace(card, run, state)


@pytest.mark.gpu
def test_l01_bytes_that_are_no_workspace_are_told_apart() -> None:
    """Taken from the allocator by hand, as an extension does: no object of Python is on them."""
    card = open_card("cuda:0")
    if card.allocator == "async":
        pytest.skip("cudaMallocAsync does not tell its blocks")
    with tightfit.leakcheck(card) as check:
        pointer = torch.cuda.caching_allocator_alloc(5 * MIB, 0)
    torch.cuda.caching_allocator_delete(pointer)
    assert check.found is not None
    assert check.leaks == ()
    assert check.found.unexplained == {"cuda:0": 5 * MIB}
    assert check.found.workspaces == {}


def load(state: Any, device: torch.device, *, hold: bool) -> None:
    """What a loader's thread runs: the model is in its locals."""
    model = nn.Linear(512, 512, bias=False).to(device)
    state.model = model
    if hold:
        state.frame = sys._getframe()


@pytest.mark.parametrize("hold", [False, True])
def test_l02_a_finished_loader_thread_holds_nothing_or_is_named(state: Any, hold: bool) -> None:
    """Unload frees all of it; with its frame held, the chain says whose local it is."""
    card = virtual(ROOM)
    with tightfit.leakcheck(card, report_only=True) as check:
        worker = threading.Thread(
            target=load, args=(state, card.device), kwargs={"hold": hold}, name="loader"
        )
        worker.start()
        worker.join()
        assert card.read().allocated == MIB
        del state.model  # the unload
    if not hold:
        assert check.leaks == ()
        assert_back(card)
        return
    assert check.leaks is not None
    (leak,) = check.leaks
    assert (leak.bytes, leak.kind) == (MIB, Hold.THREAD)
    frame = f"frame load at test_l_leaks.py:{load.__code__.co_firstlineno + 5}"
    assert leak.chain == (
        f"module {NAME}",
        "frame",
        f"{frame}, of the finished thread loader",
        "local model.weight",
        "Tensor [512, 512] float32, 1.0 MiB",
    )


def test_l07_three_lines_say_what_is_held_and_trim_takes_the_cache() -> None:
    """Not the whole process's figure: tensors, cache, and what no unload gives back."""
    card = virtual("gtx-1660-super")
    with tightfit.leakcheck(card) as check:
        model = nn.Linear(1024, 1024).to(card.device)
        del model
    reading = card.read()
    assert reading.allocated == 0
    assert reading.reserved
    assert reading.context
    allocated, reserved, context = (line.partition(": ")[2] for line in check.lines())
    assert allocated == "allocated: 0 B in tensors of this process"
    assert "cache that `trim` gives back" in reserved
    assert "lasts until it ends" in context
    card.trim()
    assert card.read().reserved == 0


@pytest.mark.gpu
def test_l07_trim_takes_what_a_real_card_reserved() -> None:
    """To what libraries keep; the context stays, and is said to."""
    card = open_card("cuda:0")
    card.trim()
    floor = card.read().reserved
    assert floor is not None
    with tightfit.leakcheck(card) as check:
        model = nn.Linear(4096, 4096).to(card.device)
        del model
    reading = card.read()
    assert reading.reserved is not None
    assert reading.reserved > floor
    assert len(check.lines()) == 3
    card.trim()
    assert card.read().reserved == floor


def rounds_of(plant: Any, *, count: int, sites: bool) -> list[bool]:
    """Load, run, unload, at ever other sizes; after which rounds something was told."""
    card = virtual(ROOM)
    told = []
    with Rounds(card, sites=sites) as rounds:
        for at in range(count):
            vae = toy_vae("V2", width=4 + 4 * (at % 3))
            size = 16 + 8 * (at * 5 % 7)
            Job(vae, "encode", card, Request(ROOM, estimate=False)).run(
                torch.zeros(1, 3, size, size)
            )
            del vae
            plant()
            leaks = rounds.look()
            told.append(bool(leaks))
    if any(told):
        (leak,) = leaks
        assert leak.site == f"{__file__}:{leave.__code__.co_firstlineno + 2}"
    assert {each.allocated for each in rounds.rounds} == {0}
    assert len({each.host_tensors for each in rounds.rounds}) == 1
    return told


_left: list[bytearray] = []


def leave() -> None:
    """A build that leaves 64 KB with each run."""
    _left.append(bytearray(64 * KIB))


def test_l08_the_floors_of_twenty_rounds_are_flat() -> None:
    """Of the card and of the host, whatever the sizes were."""
    assert rounds_of(lambda: None, count=20, sites=True) == [False] * 20


def test_l08_a_leak_of_64_kb_a_run_is_told_by_round_5_with_its_site() -> None:
    """Not before, since growth that ends is none; and nothing else is told."""
    try:
        assert rounds_of(leave, count=5, sites=True) == [False] * 4 + [True]
    finally:
        _left.clear()


def test_l10_a_cancelled_decode_leaves_nothing_also_while_its_error_is_kept(state: Any) -> None:
    """Ctrl-C in tile 2 of 6, five times: frames were emptied, and the features forgotten."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 3, 9, 112, 160)
    card = virtual(ROOM)
    allocations = 0

    def allocating(operator: str, _: int) -> None:
        nonlocal allocations
        allocations += "convolution" in operator
        if allocations == 30:
            signal.raise_signal(signal.SIGINT)

    request = Request(ROOM, wish=parse_tile("64", "16"), estimate=False)
    job = Job(vae, "encode", card, request)
    for _ in range(5):
        allocations = 0
        with (
            tightfit.leakcheck(card) as check,
            faults(card, on_allocate=allocating),
            pytest.raises(KeyboardInterrupt) as caught,
        ):
            job.run(source)
        assert caught.value.__traceback__ is not None
        assert check.leaks == ()


def test_l10_features_that_a_cancelled_call_left_are_named(state: Any) -> None:
    """Without our ladder: the attribute, and the index in it."""
    vae, card = toy_vae("V3", width=8), virtual(ROOM)
    state.vae = vae.module.to(card.device)
    source = torch.rand(1, 3, 9, 32, 32).to(card.device)
    with tightfit.leakcheck(card, report_only=True) as check, torch.no_grad():
        try:
            with faults(card, on_allocate=_interrupting(12)):
                vae.encode(source)
        except KeyboardInterrupt:
            pass
    assert check.leaks
    assert {leak.kind for leak in check.leaks} == {Hold.ATTRIBUTE}
    assert {leak.chain[1] for leak in check.leaks} <= {f"vae._feat[{at}]" for at in range(5)}
    del state.vae
    vae.module.to("cpu")


def _interrupting(after: int) -> Any:
    count = 0

    def allocating(operator: str, size: int) -> None:
        nonlocal count
        count += 1
        if count == after:
            raise KeyboardInterrupt

    return allocating


def test_a_traced_job_tells_what_it_left_and_who_holds_it() -> None:
    """A model that keeps a picture on itself; one that keeps nothing is told nothing of."""
    vae = toy_vae("V2")
    kept: list[torch.Tensor] = []
    decode = vae.module.decode

    def keeps(z: torch.Tensor) -> torch.Tensor:
        kept.append(z.new_zeros(MIB // 4))
        return decode(z)

    for planted in (False, True):
        vae.module.decode = keeps if planted else decode
        recorder = Recorder(fine=True)
        watching = Watching(recorder)
        tightfit.decode(
            0.1 * torch.randn(1, 4, 8, 8),
            vae=replace(vae, decode=vae.module.decode),
            card="virtual:64MiB",
            watching=watching,
        )
        leaks = [each for each in recorder.events() if each["event"] == "leak"]
        assert [each["bytes"] for each in leaks] == ([MIB] if planted else [])
        assert not planted or "kept" in " ".join(map(str, leaks[0]["chain"]))
    kept.clear()
