"""Which calls are under way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tightfit.place.streaming.running import Call, Running


class Tree(nn.Module):
    """Calls its children, then itself as often as it is told, then fails if it is told to."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(children)
        self.error: type[BaseException] | None = None
        self.again = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.inside:
            x = child(x)
        if self.again:
            self.again -= 1
            x = self(x)
        if self.error is not None:
            raise self.error()
        return x


def watched(*modules: nn.Module) -> tuple[Running, list[tuple[str, nn.Module]]]:
    """Hooks on all, which write down what begins and ends."""
    lines: list[tuple[str, nn.Module]] = []

    def ended(call: Call, seen: bool) -> None:
        lines.append(("end" if seen else "unseen", call.module))

    running = Running(ended)

    def before(module: nn.Module, _: object) -> None:
        call = running.enter(module)
        lines.append(("outermost" if call.outermost else "begin", module))

    def after(module: nn.Module, _: object, __: object) -> None:
        running.leave(module)

    for module in modules:
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
    return running, lines


X = torch.zeros(1)


def test_calls_nest_and_one_is_outermost() -> None:
    """Also a module in itself."""
    leaf = Tree()
    root = Tree(leaf, leaf)
    _, lines = watched(root, leaf)
    root(X)
    assert lines == [
        ("outermost", root),
        *[("begin", leaf), ("end", leaf)] * 2,
        ("end", root),
    ]
    lines.clear()
    leaf.again = 1
    leaf(X)
    assert [what for what, _ in lines] == ["outermost", "begin", "end", "end"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_call_that_ended_unseen_is_ended_by_the_next(error: type[BaseException]) -> None:
    """Exceptions are seen at once, interrupts when the same module is called again."""
    leaf = Tree()
    root = Tree(Tree(leaf), leaf)
    _, lines = watched(root, leaf)
    leaf.error = error
    with pytest.raises(error):
        root(X)
    leaf.error = None
    lines.clear()
    root(X)
    unseen = [("unseen", leaf), ("unseen", root)] if error is not ValueError else []
    assert lines == [
        *unseen,
        ("outermost", root),
        *[("begin", leaf), ("end", leaf)] * 2,
        ("end", root),
    ]


def test_another_part_may_be_called_after_an_interrupt() -> None:
    """What is in the way goes when it is met, or when the session ends."""
    one, two = Tree(), Tree()
    running, lines = watched(one, two)
    one.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        one(X)
    two(X)
    assert ("unseen", one) not in lines
    running.end_all()
    assert lines.count(("unseen", one)) == 1
    two(X)
    assert lines[-2:] == [("outermost", two), ("end", two)]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_one_thread_at_a_time() -> None:
    """A call of the second begins when the first one's outermost has ended."""
    inside, go = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert go.wait(10)
            return x

    slow, quick = Waits(), Tree()
    root = Tree(slow, quick)
    _, lines = watched(root, slow, quick)
    first = in_thread(lambda: root(X))
    assert inside.wait(10)
    second = in_thread(lambda: quick(X))
    second.join(0.3)  # longer than it takes to look whether the first is still there
    assert second.is_alive()
    assert len(lines) == 2
    go.set()
    first.join()
    second.join()
    assert [line for line in lines if line[0] == "outermost"] == [
        ("outermost", root),
        ("outermost", quick),
    ]
    assert lines.index(("end", root)) < lines.index(("outermost", quick))


def test_a_thread_that_was_interrupted_keeps_nobody_out() -> None:
    """Its frames are gone, so its turn is over; also when the thread itself is."""
    root = Tree()
    _, lines = watched(root)
    root.error = KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            root(X)

    in_thread(interrupted).join()
    root.error = None
    thread = in_thread(lambda: root(X))
    thread.join(10)
    assert not thread.is_alive()
    assert [what for what, _ in lines] == ["outermost", "unseen", "outermost", "end"]
