"""Planted leaks: each is found once, with its bytes, its kind and the whole chain."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.watch.leaks.planted import END, NAME, before, big, one, uncollected
from tightfit.card.blocks import Block
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.leaks import Found, Hold, Leak, Scope, look, moment, what_stayed
from tightfit.watch.leaks.heap import Limits

START = f"module {NAME}"
HERE = "test_find.py"


def line_of(function: Callable[..., Any], offset: int) -> str:
    """``file:line``, so many lines below the `def`."""
    return f"{HERE}:{function.__code__.co_firstlineno + offset}"


def fail(card: VirtualCard) -> None:
    """Raise, with a tensor in the frame."""
    x = big(card)
    raise ValueError(f"a shape of {tuple(x.shape)} is wrong")


FAIL = f"frame fail at {HERE}:{fail.__code__.co_firstlineno + 3}"


def expect(leak: Leak, kind: Hold, *chain: str) -> None:
    """The kind, and the chain word for word."""
    assert leak.path == " → ".join(chain)
    assert leak.kind is kind
    assert leak.device.startswith("vcard:")


def test_containers_of_a_module_are_named_as_in_python(card: VirtualCard, state: Any) -> None:
    """From the module that is alive by itself, through keys and indices."""
    first = before(card)
    state.cache = {"frames": [1, 2, 3, big(card)]}
    expect(one(first), Hold.GLOBAL, START, "cache['frames'][3]", END)


def test_a_stored_exception_leads_through_its_traceback(card: VirtualCard, state: Any) -> None:
    """To the frame, where it stood, and the name of the local."""
    first = before(card)
    try:
        fail(card)
    except ValueError as error:
        state.error = error
    expect(
        one(first),
        Hold.EXCEPTION,
        START,
        "error (ValueError)",
        "traceback",
        FAIL,
        "local x",
        END,
    )


def test_the_last_error_of_a_prompt_leads_through_its_cause(
    card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.last_exc` is what a prompt keeps; what was raised `from` another keeps that as well."""
    first = before(card)

    def outer() -> None:
        try:
            fail(card)
        except ValueError as error:
            raise KeyError("later") from error

    try:
        outer()
    except KeyError as error:
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    leak = one(first)
    monkeypatch.undo()
    expect(
        leak,
        Hold.EXCEPTION,
        "module sys",
        "last_exc (KeyError)",
        "cause (ValueError)",
        "traceback",
        FAIL,
        "local x",
        END,
    )


def test_an_error_that_came_while_another_was_handled_keeps_that(
    card: VirtualCard, state: Any
) -> None:
    """By its context."""
    first = before(card)
    try:
        try:
            fail(card)
        except ValueError:
            state.no_such_thing()
    except AttributeError as error:
        state.error = error.with_traceback(None)
        state.error.obj = None
    leak = one(first)
    assert leak.kind is Hold.EXCEPTION
    assert leak.chain[1:4] == ("error (AttributeError)", "context (ValueError)", "traceback")


def test_the_frame_of_a_finished_thread_is_named_with_its_local(
    card: VirtualCard, state: Any
) -> None:
    """A frame that somebody keeps has its locals for as long."""
    first = before(card)

    def load() -> None:
        model = [big(card)]
        state.frame = sys._getframe()
        assert model

    worker = threading.Thread(target=load, name="loader")
    worker.start()
    worker.join()
    leak = one(first)
    where = f"frame {load.__qualname__} at {line_of(load, 3)}, of the finished thread loader"
    expect(leak, Hold.THREAD, START, "frame", where, "local model[0]", END)


def test_a_module_attribute_is_named_by_its_path(card: VirtualCard, state: Any) -> None:
    """As people write it, without the tables that modules are made of."""

    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList([nn.Linear(2, 2)])
            self.feat: list[Any] = [None] * 5

    state.vae = Vae()
    first = before(card)
    state.vae.up[0]._feat_map = [None, None, None, big(card)]
    expect(one(first), Hold.ATTRIBUTE, START, "vae.up.0._feat_map[3]", END)


def test_a_closure_is_named_by_its_variable(card: VirtualCard, state: Any) -> None:
    """And the function by where it is defined."""
    first = before(card)

    def make() -> Callable[[], Any]:
        kept = [big(card)]
        return lambda: kept

    state.run = make()
    name = f"run (function {make.__qualname__}.<locals>.<lambda> at {line_of(make, 2)})"
    expect(one(first), Hold.CLOSURE, START, name, "closure kept[0]", END)


class Node:
    """Something that refers to something."""

    peer: Node
    data: list[torch.Tensor]


def test_a_cycle_that_waits_for_the_collector_is_named(card: VirtualCard) -> None:
    """Nothing alive leads to it; it is gone after the look."""
    first = before(card)
    with uncollected():

        def plant() -> None:
            one, two = Node(), Node()
            one.peer, two.peer, two.data = two, one, [big(card)]

        plant()
        leak = one(first)
        expect(leak, Hold.CYCLE, "cycle Node (peer.peer is itself)", "data[0]", END)
        assert card.read().allocated == 0


def test_a_cycle_of_an_error_and_its_own_frame_is_named(card: VirtualCard) -> None:
    """``except … as error: kept = error`` is the usual one."""
    first = before(card)
    with uncollected():

        def plant() -> None:
            x = big(card)
            try:
                raise ValueError
            except ValueError as error:
                kept = error
            assert kept is not x

        plant()
        leak = one(first)
        assert leak.kind is Hold.CYCLE
        assert "local x" in leak.chain
        assert "local kept" in leak.path


def test_a_view_that_pins_its_base_has_the_bytes_of_the_base(card: VirtualCard, state: Any) -> None:
    """16 bytes are seen, a mebibyte is kept."""
    first = before(card)
    state.kept = [big(card)[:1, :4]]
    end = "Tensor [1, 4] float32, a view of 16 B that pins 1.0 MiB"
    leak = one(first)
    expect(leak, Hold.VIEW, START, "kept[0]", end)
    assert leak.shape == (1, 4)


def test_the_result_of_a_future_is_named(card: VirtualCard, state: Any) -> None:
    """Whoever keeps the future keeps its result."""
    first = before(card)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        state.jobs = [pool.submit(lambda: {"x": big(card)})]
    expect(one(first), Hold.FUTURE, START, "jobs[0] (Future)", "_result['x']", END)


def test_the_error_of_a_future_is_named(card: VirtualCard, state: Any) -> None:
    """With the frame of the thread that it was raised in."""
    first = before(card)
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        state.jobs = [pool.submit(fail, card)]
    expect(
        one(first),
        Hold.FUTURE,
        START,
        "jobs[0] (Future)",
        "_exception (ValueError)",
        "traceback",
        f"{FAIL}, of the finished thread pool_0",
        "local x",
        END,
    )


class Keeping(logging.Handler):
    """Keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def logger(state: Any) -> Iterator[logging.Logger]:
    """One whose handler, `mypkg.state.handler`, keeps records, and which tells nobody else."""
    found = logging.getLogger(NAME)
    found.propagate = False
    state.handler = Keeping()
    found.addHandler(state.handler)
    yield found
    found.removeHandler(state.handler)


def test_the_arguments_of_a_log_record_are_named(card: VirtualCard, logger: logging.Logger) -> None:
    """A handler that keeps records keeps what was to be formatted."""
    first = before(card)
    logger.warning("latent %s", big(card))
    expect(one(first), Hold.LOGGER, START, "handler.records[0] (LogRecord)", "args[0]", END)


def test_the_error_of_a_log_record_is_named(card: VirtualCard, logger: logging.Logger) -> None:
    """`exc_info` has the traceback."""
    first = before(card)
    try:
        fail(card)
    except ValueError:
        logger.exception("failed")
    leak = one(first)
    assert leak.kind is Hold.LOGGER
    assert leak.chain[:2] == (START, "handler.records[0] (LogRecord)")
    assert leak.chain[-3:] == (FAIL, "local x", END)


class Shell:
    """What IPython has: the names that a user gave."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}


@pytest.mark.parametrize("name", ["_", "__", "_7"])
def test_last_results_of_a_prompt_are_named(card: VirtualCard, state: Any, name: str) -> None:
    """Each is a name of its own in the user's namespace."""
    first = before(card)
    state.shell = Shell()
    state.shell.user_ns[name] = big(card)
    expect(one(first), Hold.INTERACTIVE, START, f"shell.user_ns['{name}']", END)


def test_outputs_of_a_prompt_are_named(card: VirtualCard, state: Any) -> None:
    """`Out` by number; what a user named himself is none of them."""
    first = before(card)
    state.shell = Shell()
    state.shell.user_ns["Out"] = {3: big(card)}
    expect(one(first), Hold.INTERACTIVE, START, "shell.user_ns['Out'][3]", END)
    state.shell.user_ns = {"latent": state.shell.user_ns["Out"][3]}
    expect(one(first), Hold.GLOBAL, START, "shell.user_ns['latent']", END)


def test_a_suspended_generator_is_named_with_its_local(card: VirtualCard, state: Any) -> None:
    """Where it waits, and what it has."""
    first = before(card)

    def steps() -> Generator[int, None, None]:
        x = big(card)
        yield 1
        del x

    state.steps = steps()
    next(state.steps)
    name = f"steps (suspended {steps.__qualname__} at {line_of(steps, 2)})"
    expect(one(first), Hold.GENERATOR, START, name, "local x", END)


def test_a_suspended_coroutine_is_named_with_its_local(card: VirtualCard, state: Any) -> None:
    """Likewise."""
    first = before(card)
    future = asyncio.new_event_loop()
    waited = future.create_future()

    async def decode() -> None:
        x = big(card)
        await waited
        del x

    state.call = decode()
    state.call.send(None)
    leak = one(first)
    state.call.close()
    future.close()
    name = f"call (suspended {decode.__qualname__} at {line_of(decode, 2)})"
    expect(leak, Hold.GENERATOR, START, name, "local x", END)


@pytest.mark.parametrize("most", [None, 8])
def test_a_function_cache_is_named(card: VirtualCard, state: Any, most: int | None) -> None:
    """Bounded or not."""
    first = before(card)

    @functools.lru_cache(maxsize=most)
    def table(size: int) -> torch.Tensor:
        return big(card)

    state.table = table
    table(3)
    name = f"table (cache of {table.__wrapped__.__qualname__})"
    expect(one(first), Hold.CACHE, START, name, END)


def test_what_is_kept_for_a_backward_is_named(card: VirtualCard, state: Any) -> None:
    """A loss that is kept keeps what its way back needs."""
    state.weight = nn.Parameter(big(card))
    first = before(card)
    state.loss = state.weight.exp().sum()
    leaks = what_stayed(first).leaks
    assert [leak.bytes for leak in leaks] == [MIB, 4]
    expect(leaks[0], Hold.HISTORY, START, "loss", "history", END)


def test_a_gradient_is_named(card: VirtualCard, state: Any) -> None:
    """It is no attribute that Python's collector sees."""
    state.weight = nn.Parameter(big(card))
    first = before(card)
    state.weight.grad = big(card)
    expect(one(first), Hold.GLOBAL, START, "weight.grad", END)


def test_a_local_of_a_frame_that_runs_is_named(card: VirtualCard) -> None:
    """It goes by itself, so it is named last, where nothing that lasts holds it."""
    first = before(card)
    kept = [big(card)]
    leak = one(first)
    assert leak.kind is Hold.FRAME
    assert leak.chain[0].startswith(
        f"running frame test_a_local_of_a_frame_that_runs_is_named at {HERE}:"
    )
    assert leak.chain[1:] == ("local kept[0]", END)
    assert kept


class Slotted:
    """Attributes without a table."""

    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


def variable(tensor: torch.Tensor) -> threading.local:
    """One thread's own."""
    local = threading.local()
    local.x = tensor
    return local


def of_class(tensor: torch.Tensor) -> type:
    """A class with a table."""
    return type("Tables", (), {"table": {(1, "a"): tensor}})


@pytest.mark.parametrize(
    ("make", "link"),
    [
        (Slotted, "it.x"),
        (lambda t: functools.partial(print, t), "it.args[0]"),
        (variable, "it['x']"),
        (of_class, "it.table[(1, 'a')]"),
        (lambda t: {t}, "it{…}"),
    ],
    ids=["slots", "partial", "thread's variable", "class", "set"],
)
def test_ways_to_hold_are_named_as_in_python(
    card: VirtualCard, state: Any, make: Callable[[Any], Any], link: str
) -> None:
    """Whatever the holder is made of."""
    first = before(card)
    state.it = make(big(card))
    expect(one(first), Hold.GLOBAL, START, link, END)


def nothing(found: Found) -> bool:
    """Neither leaks nor notes."""
    return not found.leaks and not found.notes


def test_weak_references_hold_nothing(card: VirtualCard, state: Any) -> None:
    """A tensor that only they know is gone, and is no leak."""
    first = before(card)
    kept = big(card)
    state.weak, state.table = weakref.ref(kept), weakref.WeakValueDictionary(a=kept)
    assert one(first).chain[1] == "local kept"
    del kept
    assert nothing(what_stayed(first))
    assert state.weak() is None


def test_what_was_there_is_no_leak_nor_are_new_views_of_it(card: VirtualCard, state: Any) -> None:
    """Bytes that were there are not new, whoever looks at them now."""
    state.cache = [big(card)]
    first = before(card)
    state.more = state.cache[0][:4]
    assert nothing(what_stayed(first))
    state.cache.clear()
    assert nothing(what_stayed(first))


def test_weights_of_a_module_that_was_there_may_move(card: VirtualCard, state: Any) -> None:
    """A user who puts a model on the card leaves nothing behind; its caches are another thing."""
    state.model = nn.Linear(512, 512, bias=False)
    first = before(card)
    state.model.to(card.device)
    assert nothing(what_stayed(first))
    state.model.seen = big(card)
    expect(one(first), Hold.ATTRIBUTE, START, "model.seen", END)


def test_weights_of_a_new_module_are_leaks(card: VirtualCard, state: Any) -> None:
    """It was not there."""
    first = before(card)
    state.model = nn.Linear(512, 512, bias=False).to(card.device)
    expect(one(first), Hold.ATTRIBUTE, START, "model.weight", END)


def test_modules_that_the_collector_passes_over_were_there(card: VirtualCard, state: Any) -> None:
    """`gc.freeze` hides them from a listing, not from a walk."""
    state.model = nn.Linear(512, 512, bias=False)
    gc.freeze()
    first = before(card)
    state.model.to(card.device)
    assert nothing(what_stayed(first))


def test_views_and_ties_count_once(card: VirtualCard, state: Any) -> None:
    """The storage is what costs."""
    first = before(card)
    whole = big(card)
    state.held = {"whole": whole, "half": whole[:256], "again": whole.view(-1)}
    del whole
    found = what_stayed(first)
    assert found.bytes == MIB
    expect(found.leaks[0], Hold.GLOBAL, START, "held['whole']", END)


def test_bytes_that_no_tensor_holds_are_workspaces(card: VirtualCard, state: Any) -> None:
    """They are told apart, beside a leak too."""
    first = before(card)
    block = card.charge(8 * MIB, "workspace")
    found = what_stayed(first)
    assert not found.leaks
    assert found.workspaces == {str(card.device): 8 * MIB}
    assert found.lines() == [f"8.0 MiB on {card.device}, library workspace: no leak"]
    state.cache = big(card)
    found = what_stayed(first)
    assert [leak.bytes for leak in found.leaks] == [MIB]
    assert found.workspaces == {str(card.device): 8 * MIB}
    card.discharge(block)


def test_blocks_that_are_no_workspace_are_told_apart(
    card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an allocator tells its blocks: new ones in which no tensor lies, by their size."""
    old, strange = Block(2**20, 512, 512), Block(2**21, 5 * MIB, 5 * MIB)
    workspace = Block(2**30, 32 * MIB, 32 * MIB)
    blocks = [old]
    monkeypatch.setattr(moment, "blocks_of", lambda _: tuple(blocks))
    first = before(card)
    held = card.charge(37 * MIB, "held by nobody")
    blocks += [strange, workspace]
    found = what_stayed(first)
    assert found.leaks == ()
    assert found.unexplained == {str(card.device): 5 * MIB}
    assert found.workspaces == {str(card.device): 32 * MIB}
    assert "5.0 MiB" in found.lines()[-1]
    recorder = Recorder()
    found.tell(recorder)
    assert recorder.counts == {"library_workspace": 1, "unexplained": 1}
    card.discharge(held)


def test_the_search_keeps_nothing_alive(card: VirtualCard, state: Any) -> None:
    """What it found goes when its holder lets go, while the answer is kept."""
    first = before(card)
    state.cache = [big(card)]
    with uncollected():
        found = what_stayed(first)
        assert card.read().allocated == MIB
        state.cache.clear()
        assert card.read().allocated == 0
        assert found.bytes == MIB


def test_the_search_leaves_no_frame_of_its_own_behind(card: VirtualCard) -> None:
    """It reads frames that run, and is among them: a local is gone when it is dropped."""
    first = before(card)
    kept = [big(card)]
    with uncollected():
        assert one(first).kind is Hold.FRAME
        kept.clear()
        assert card.read().allocated == 0
        assert nothing(what_stayed(first))


def test_a_search_that_is_cut_short_says_so(card: VirtualCard, state: Any) -> None:
    """Depth, time, and the number of chains each have a limit."""
    first = before(card)
    state.cache = [[[big(card), torch.zeros(4, device=card.device)]]]
    found = what_stayed(first, limits=Limits(depth=3))
    assert found.notes == (
        "The search was cut short: chains of more than 3 links were not followed.",
    )
    assert [leak.kind for leak in found.leaks] == [Hold.UNSEEN, Hold.UNSEEN]
    found = what_stayed(first, limits=Limits(seconds=0))
    assert "the time for the search ran out" in found.notes[0]
    found = what_stayed(first, limits=Limits(chains=1))
    assert found.notes == ("1 more storage of 16 B in all stayed: these are small.",)
    assert [leak.bytes for leak in found.leaks] == [MIB]


def test_a_heap_of_millions_is_searched_within_the_limit(card: VirtualCard, state: Any) -> None:
    """A cycle takes the longest: all that is alive is walked over before it can be told."""
    with uncollected():
        state.table = [[[]] for _ in range(1_250_000)]
        first = before(card)
        loop: list[Any] = [big(card)]
        loop.append(loop)
        del loop
        found = what_stayed(first)
        state.table.clear()
    assert found.notes == ()
    (leak,) = found.leaks
    expect(leak, Hold.CYCLE, "cycle list ([1] is itself)", "[0]", END)


def test_tensors_on_the_host_count_where_they_are_asked_for(state: Any) -> None:
    """The payload of a virtual tensor is none of them."""
    first, card_alone = look(Scope((), host=True)), look(Scope())
    state.cache = torch.zeros(512, 512)
    found = what_stayed(first)
    assert (found.leaks[0].device, found.leaks[0].path) == (
        "cpu",
        f"{START} → cache → {END}",
    )
    assert nothing(what_stayed(card_alone))


def test_two_cards_are_told_apart(card: VirtualCard, state: Any) -> None:
    """Only what is on the card that was asked about."""
    other = VirtualCard(card.spec)
    first, both = before(card), look(Scope((card, other)))
    state.cache = [big(other)]
    assert nothing(what_stayed(first))
    assert [leak.device for leak in what_stayed(both).leaks] == [str(other.device)]
