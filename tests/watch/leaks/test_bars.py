"""The bars: planted leaks of all kinds are told with their chain; no false alarm in 100 runs."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.watch.leaks.planted import NAME, before, uncollected
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import KIB
from tightfit.watch.leaks import Hold, what_stayed

Make = Callable[[], torch.Tensor]
"""A tensor on the card."""


class Keeping(logging.Handler):
    """Keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def raises(make: Make) -> None:
    """With a tensor in the frame."""
    x = make()
    raise ValueError(x.shape)


def an_exception(state: Any, make: Make) -> None:
    try:
        raises(make)
    except ValueError as error:
        state.error = error


def a_thread(state: Any, make: Make) -> None:
    def load() -> None:
        model = make()
        state.frame = sys._getframe()
        assert model is not None

    worker = threading.Thread(target=load, name="loader")
    worker.start()
    worker.join()


def an_attribute(state: Any, make: Make) -> None:
    state.vae = nn.Linear(2, 2)
    state.vae._feat_map = [None, None, None, make()]


def a_closure(state: Any, make: Make) -> None:
    kept = make()
    state.run = lambda: kept


def a_cycle(_: Any, make: Make) -> None:
    loop: list[Any] = [make()]
    loop.append(loop)


def a_view(state: Any, make: Make) -> None:
    state.view = make()[:1]


def a_future(state: Any, make: Make) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        state.job = pool.submit(make)


def a_log_record(state: Any, make: Make) -> None:
    state.handler = Keeping()
    state.handler.emit(logging.LogRecord("n", 20, "f.py", 1, "latent %s", (make(),), None))


def a_prompt(state: Any, make: Make) -> None:
    state.shell = type("Shell", (), {})()
    state.shell.user_ns = {"_7": make()}


def a_generator(state: Any, make: Make) -> None:
    def steps() -> Iterator[int]:
        x = make()
        yield 1
        del x

    state.steps = steps()
    next(state.steps)


def a_cache(state: Any, make: Make) -> None:
    @functools.cache
    def table(_: int) -> torch.Tensor:
        return make()

    state.table = table
    table(3)


def a_global(state: Any, make: Make) -> None:
    state.last = {"x": [make()]}


KINDS: dict[Callable[[Any, Make], None], tuple[Hold, tuple[str, ...]]] = {
    an_exception: (Hold.EXCEPTION, ("error (ValueError)", "traceback", "local x")),
    a_thread: (Hold.THREAD, ("of the finished thread loader", "local model")),
    an_attribute: (Hold.ATTRIBUTE, ("vae._feat_map[3]",)),
    a_closure: (Hold.CLOSURE, ("run (function", "closure kept")),
    a_cycle: (Hold.CYCLE, ("cycle list", "[0]")),
    a_view: (Hold.VIEW, ("view", "that pins")),
    a_future: (Hold.FUTURE, ("job (Future)", "_result")),
    a_log_record: (Hold.LOGGER, ("handler.records[0] (LogRecord)", "args[0]")),
    a_prompt: (Hold.INTERACTIVE, ("shell.user_ns['_7']",)),
    a_generator: (Hold.GENERATOR, ("steps (suspended", "local x")),
    a_cache: (Hold.CACHE, ("table",)),
    a_global: (Hold.GLOBAL, ("last['x'][0]",)),
}


def test_twelve_kinds_that_are_planted_at_once_are_each_told_with_their_holder(
    card: VirtualCard, state: Any
) -> None:
    """By kind, by bytes, and by every link that matters, in order; and nothing else is told."""
    with uncollected():
        first = before(card)
        expected = {}
        for at, (plant, told) in enumerate(KINDS.items(), start=1):
            size = at * 4 * KIB
            plant(state, functools.partial(torch.zeros, size // 4, device=card.device))
            expected[size] = told
        found = {leak.bytes: leak for leak in what_stayed(first).leaks}
    assert found.keys() == expected.keys()
    for size, (kind, links) in expected.items():
        leak = found[size]
        assert leak.kind is kind, leak.line()
        assert leak.chain[0].startswith((f"module {NAME}", "cycle"))
        places = [leak.path.find(link) for link in links]
        assert -1 not in places, leak.line()
        assert places == sorted(places), leak.line()


def let_go(state: Any) -> None:
    """What each kind has to let go of, in one go."""
    for name in [name for name in vars(state) if not name.startswith("__")]:
        delattr(state, name)


CLEAN = [plant for plant in KINDS if plant is not a_cycle]


@pytest.mark.parametrize("part", range(4))
def test_a_hundred_clean_runs_of_what_leaks_elsewhere_raise_no_alarm(
    card: VirtualCard, state: Any, part: int
) -> None:
    """Errors that were handled, threads that ended, caches that were emptied: once they let go,
    nothing is told, whatever the collector did meanwhile."""
    for at in range(25):
        plant = CLEAN[(25 * part + at) % len(CLEAN)]
        first = before(card)
        plant(state, functools.partial(torch.zeros, KIB, device=card.device))
        assert card.read().allocated == 4 * KIB
        let_go(state)
        found = what_stayed(first)
        assert (found.leaks, found.workspaces, found.notes) == ((), {}, ()), plant.__name__
