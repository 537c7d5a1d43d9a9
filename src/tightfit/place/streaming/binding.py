"""A module whose weights come and go with its calls."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback as _compiler
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from tightfit.card.base import Card
from tightfit.card.lanes import Mark, Queue
from tightfit.errors import UsageError
from tightfit.place.converting.converter import Converter
from tightfit.place.streaming.brought import Brought
from tightfit.place.streaming.compiled import Around, compiled_of, may_compile, untraced
from tightfit.place.streaming.running import Call, Running
from tightfit.place.streaming.seat import Seat
from tightfit.place.streaming.state_dicts import served
from tightfit.place.streaming.tracing import Tracer
from tightfit.place.streaming.within import ByItself, StandIn, has_hooks, may_stand_in

_me = threading.get_ident
_is_traced = torch.compiler.is_dynamo_compiling


@dataclass(eq=False)
class _Spot:
    """A module with hooks.

    Attributes:
        module: that one.
        is_watched: its calls may be outermost ones that matter, whatever is here.
        is_hooked: a hook before its calls is there, and stays.
        here: what has to be there while it is being called, in the order in which it is brought.
        inner: the one that is there, where there is one alone and its head is another module: while
            that is being called, nothing has to be done.
        sees_end: whether a hook after its calls is there; where there is an `inner`, most of them
            need none, so it comes with the first that does.
        compiled: set where it is compiled with its hooks; then what they do is done around that.
        stands: set where it has another `forward` instead of hooks.
    """

    module: nn.Module
    is_watched: bool = False
    is_hooked: bool = False
    here: tuple[Brought, ...] = ()
    inner: Brought | None = None
    sees_end: bool = False
    compiled: Around | None = None
    stands: StandIn | None = None

    def holds(self, here: Iterable[Brought]) -> None:
        """From now on these have to be there."""
        self.here = tuple(here)
        alone = self.here[0] if len(self.here) == 1 else None
        self.inner = alone if alone is not None and alone.head is not self.module else None


class Binding:
    """Hooks on a module: each group is on the card while one of its anchors is being called.

    What hooks do is no part of a graph where blocks are compiled: see `compiled`. Only the hooks of
    layers whose head is being called are looked through.

    Attributes:
        asleep: calls are left alone, since they are not about the weights (a dry run).
    """

    def __init__(
        self,
        module: nn.Module,
        card: Card,
        compute: Queue,
        passing: Iterable[Brought],
        masters: dict[int, Seat],
        *,
        begins: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
        converter: Converter | None = None,
    ) -> None:
        """`masters` finds the seat of each tensor that the module holds, by the tensor's id.

        `begins` is called as each outermost call begins, and may refuse it. A `tracer` is told of
        calls and uses; then `compute` is the tracer's. A `converter` is told what outermost calls
        are given.
        """
        self.asleep = False
        self._device = card.device
        self._begins = begins
        self._tracer = tracer
        self._converter = converter
        self._line = _Line(card, compute, tracer)
        self.running = self._running = Running(self._line.ended)
        self._entering: Callable[..., Any] = Binding._enter
        self._leaving: Callable[..., Any] = Running.leave
        self._apart: Callable[..., Any] = Binding._by_itself
        self._handles: list[RemovableHandle] = []
        self._modules = modules = dict(module.named_modules())
        self._spots: dict[str, _Spot] = {}
        self._mostly: list[_Spot] = []
        try:
            self.rebind(passing)
            for owner in modules.values():
                self._handles += served(owner, masters)
        except BaseException:
            self.close()
            raise

    def rebind(self, passing: Iterable[Brought], *, watched: Iterable[str] = ()) -> None:
        """From here on these are brought, and no others; between calls, in their turn.

        What has to be there first comes first.

        Calls of the `watched` modules are told to `begins` as well, though nothing passes there.
        Hooks stay where they are once there: another thread may be waiting in one for its turn.
        """
        always = {"", *watched}
        anchored: dict[str, list[Brought]] = defaultdict(list, {path: [] for path in always})
        for each in passing:
            for anchor in each.anchors:
                anchored[anchor].append(each)
        for path in anchored:
            if path not in self._spots:
                self._spots[path] = _Spot(self._modules[path])
        for path, spot in self._spots.items():
            spot.is_watched = path in always
            spot.holds(anchored.get(path, ()))
            if not spot.is_hooked:
                self._reach(spot)
        self._mostly = [spot for spot in self._spots.values() if spot.inner is None]
        self._keep_compiler_out()

    def whole(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `run` gives, with all there that has to be in calls of the module as a whole."""
        spot = self._spots[""]
        if self.asleep or not spot.here:
            return run(*args, **kwargs)

        def enter(called: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            return self._enter(spot, args, kwargs, called=called)

        return ByItself()(enter, self._running.leave, run, args, kwargs)

    def close(self) -> None:
        """End calls that ended unseen, and take the hooks away; harmless when repeated."""
        while self._handles:
            self._handles.pop().remove()
        for spot in self._spots.values():
            if spot.stands is not None:
                spot.stands.remove()
                spot.stands = None
            if spot.compiled is not None:
                spot.compiled.remove()
                spot.compiled = None
        self._running.end_all()

    def _reach(self, spot: _Spot) -> None:
        """Be told of calls of a module that has no hook, as far as they matter now."""
        if spot.stands is not None:
            spot.stands.remove()
            spot.stands = None
        inner = spot.inner
        if inner is not None and not spot.is_watched and may_stand_in(spot.module, inner.head):
            spot.stands = StandIn(spot.module, self._forward(spot))
        elif spot.here or spot.is_watched:
            self._hook(spot)

    def _hook(self, spot: _Spot) -> None:
        running = self._running
        spot.is_hooked = True

        def before(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[Any, Any] | None:
            del module
            inner = spot.inner
            if inner is not None and inner.called and (_is_traced() or running.owner == _me()):
                return None  # it is there for the whole call of its head
            if spot.compiled is not None and spot.compiled.inside:
                return None
            if _is_traced() or _compiler() is not None:
                moved: tuple[Any, Any] | None = self._entering(self, spot, args, kwargs)
                return moved
            return self._enter(spot, args, kwargs)

        self._handles.append(
            spot.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        )

    def _forward(self, spot: _Spot) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes what stands in for the `forward` of a layer; others may keep it, and then call it.

        So it holds nothing of the card itself.
        """
        running = self._running

        def make(plain: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                inner = spot.inner
                if inner is not None and inner.called and (_is_traced() or running.owner == _me()):
                    return plain(*args, **kwargs)  # they are there for the whole call of its head
                if self.asleep or not (spot.here or spot.is_watched):
                    return plain(*args, **kwargs)
                return self._apart(self, spot, plain, args, kwargs)

            return forward

        return make

    def _by_itself(
        self,
        spot: _Spot,
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call of a layer that has no hooks, and whose head is not being called."""
        if has_hooks(spot.module) and not spot.is_hooked:
            if spot.stands is not None:
                spot.stands.remove()
                spot.stands = None
            self._hook(spot)
            name = type(spot.module).__name__
            raise UsageError(
                f"a `{name}` whose weights are streamed with a module above it is called by itself "
                "and has got hooks, which ran before its weights were there: from now on they are "
                "brought first, so call it again."
            )

        def enter(called: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            return self._enter(spot, args, kwargs, called=called)

        return ByItself()(enter, self._running.leave, plain, args, kwargs)

    def _enter(
        self,
        spot: _Spot,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        called: nn.Module | None = None,
    ) -> tuple[Any, Any] | None:
        """A call begins whose weights have to be brought, or which is outermost.

        It is seen as one of `called`, which is the module of `spot` but for calls by themselves.
        """
        if self.asleep or not (spot.here or spot.is_watched):
            return None
        if called is None and not spot.sees_end:
            self._watch_end(spot)
        call = self._running.enter(called or spot.module)
        moved = self._begin(call, args, kwargs) if call.outermost else None
        for each in spot.here:
            if not each.called or each.head is spot.module:  # else it is there for all that call
                self._take(call, each)
        return moved

    def _watch_end(self, spot: _Spot) -> None:
        running = self._running

        def after(module: nn.Module, args: Any, output: Any) -> None:
            del args, output
            if spot.compiled is not None and spot.compiled.inside:
                return
            inner = spot.inner
            if inner is not None and inner.called:
                return
            if _is_traced() or _compiler() is not None:
                self._leaving(running, module)
            else:
                running.leave(module)

        self._handles.append(spot.module.register_forward_hook(after, always_call=True))
        spot.sees_end = True

    def _begin(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        """The outermost call: inputs come to the card, and autocast keeps no copies of weights.

        Such a copy would outlive what it was made of, or stand for other weights in one slot.
        """
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            raise UsageError(
                f"`{type(call.module).__name__}` is streamed, so it has no gradients, and an input "
                "requires one: use torch.no_grad()."
            )
        self._keep_compiler_out()
        self._begins()
        self._line.begin()
        call.undo = _without_autocast_cache()
        if self._converter is not None and self._converter.conversions:
            turn = self._converter.turn(tensors)
            call.undo = _both(turn.end, call.undo)
            turn.begin()
        if all(each.device.type != "cpu" for each in tensors):
            return None
        moved: tuple[Any, Any] = tree_map(self._to_card, (args, kwargs))
        return moved

    def _to_card(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            return value.to(self._device)
        return value

    def _take(self, call: Call, each: Brought) -> None:
        if each.is_full():
            self._running.end_unseen()
        call.taken.append(each)
        tracer = self._tracer if each.is_traced else None
        if tracer is not None:
            tracer.reach(each.name, call)
        each.bring(call)
        if tracer is not None:
            tracer.start(call)
        if call.module is each.head:
            each.called = True

    def _keep_compiler_out(self) -> None:
        """While there are hooks, from when on there is a compiler: that may be at any time."""
        if not self._handles or not may_compile():
            return
        if self._entering is Binding._enter:
            self._entering, self._leaving = untraced(Binding._enter), untraced(Running.leave)
            self._apart = untraced(Binding._by_itself)
        for spot in self._mostly:
            if compiled_of(spot.module) not in (None, spot.compiled):
                spot.compiled = self._around(spot)

    def _around(self, spot: _Spot) -> Around:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            moved: tuple[Any, Any] | None = self._entering(self, spot, args, kwargs)
            return moved

        def after() -> None:
            self._leaving(self._running, spot.module)

        return Around(spot.module, before, after)


class _Line:
    """Calls of one module one after another, whichever stream each of them computes in."""

    def __init__(self, card: Card, compute: Queue, tracer: Tracer | None) -> None:
        self._card = card
        self._tracer = tracer
        self._compute = compute
        self._last: Mark | None = None

    def begin(self) -> None:
        """An outermost call begins after the last one, in the stream of now."""
        if self._last is not None:
            self._compute.wait(self._last)
        if self._tracer is not None:
            self._tracer.begin()

    def ended(self, call: Call, seen: bool) -> None:
        """Let go what `call` took. What was not seen to end may be in any stream: wait for all."""
        if not seen:
            self._card.sync()
        if self._tracer is not None:
            self._tracer.leave(call)
        for each in reversed(call.taken):
            if call.module is each.head:
                each.called = False
            each.let_go(call)
        if call.outermost:
            self._last = self._compute.mark(again=self._last)
            if self._tracer is not None:
                self._tracer.end(seen=seen)
        undo, call.undo = call.undo, None
        if undo is not None:
            undo()


def _without_autocast_cache() -> Callable[[], None]:
    """Switch the cache of autocast off; the answer puts it back as it was."""
    before: bool = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)

    def undo() -> None:
        torch.set_autocast_cache_enabled(before)

    return undo


def _both(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def undo() -> None:
        first()
        then()

    return undo
