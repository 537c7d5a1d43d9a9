"""What code must find again as it was, after it was run for its shapes alone."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from tightfit.weigh import DEPTH

_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((dict, OrderedDict, list, set, deque))
_OPAQUE = (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    ModuleType,
    nn.Module,
    torch.Generator,
    torch.Tensor,
    type,
)


class Aside:
    """Remembers attributes and what containers hold, not values of tensors; `put_back` undoes.

    Containers and objects stay the ones that they are, since others may share them.
    """

    def __init__(self, module: nn.Module, given: Iterable[object]) -> None:
        """Of `module` and its parts, and of objects that a call is `given`."""
        self._undo: list[Callable[[], None]] = []
        self._empty: list[Any] = []
        self._seen: dict[int, object] = {}
        for part in module.modules():
            self._look(vars(part), DEPTH + 1)
        for each in given:
            self._look(each, DEPTH)

    def put_back(self) -> None:
        """Everything is as it was; what has not changed is not touched."""
        for container in self._empty:
            if container:
                container.clear()
        for undo in self._undo:
            undo()

    def _look(self, value: object, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN or not depth or id(value) in self._seen:
            return
        if kind in _CONTAINERS and not value:  # as most tables of hooks are
            self._seen[id(value)] = value
            self._empty.append(value)
            return
        if isinstance(value, _OPAQUE):
            return
        inside: Iterable[object]
        if isinstance(value, dict):
            self._undo.append(_dict_undo(value))
            inside = value.values()
        elif isinstance(value, (list, deque)):
            self._undo.append(_list_undo(value))
            inside = value
        elif isinstance(value, set):
            self._undo.append(_set_undo(value))
            inside = ()
        elif isinstance(value, tuple):
            inside = value
        elif isinstance(getattr(value, "__dict__", None), dict):
            inside = (vars(value),)
        else:
            return
        self._seen[id(value)] = value
        for each in list(inside):
            self._look(each, depth - 1)


@contextmanager
def nothing_lasts(module: nn.Module, given: Iterable[object]) -> Iterator[None]:
    """While inside, `module` may be called with what is `given`: no attribute of it changes.

    Neither do the objects given, nor what any generator of random numbers draws next.
    """
    given = list(given)
    aside, put_back = Aside(module, given), drawn(given)
    try:
        yield
    finally:
        aside.put_back()
        put_back()


def drawn(given: Iterable[object]) -> Callable[[], None]:
    """Puts all generators back to where they are now, those that are `given` to a call too."""
    own = [(each, each.get_state()) for each in given if isinstance(each, torch.Generator)]
    python, host = random.getstate(), torch.get_rng_state()
    cuda: Any = torch.cuda
    devices = cuda.get_rng_state_all() if cuda.is_initialized() else None

    def put_back() -> None:
        for generator, state in own:
            generator.set_state(state)
        random.setstate(python)
        torch.set_rng_state(host)
        if devices is not None:
            cuda.set_rng_state_all(devices)

    return put_back


def _dict_undo(now: dict[Any, Any]) -> Callable[[], None]:
    before = list(now.items())

    def undo() -> None:
        if not _same((part for pair in now.items() for part in pair), before):
            now.clear()
            now.update(before)

    return undo


def _list_undo(now: list[Any] | deque[Any]) -> Callable[[], None]:
    before = list(now)

    def undo() -> None:
        if not _same(now, [(each,) for each in before]):
            now.clear()
            now.extend(before)

    return undo


def _set_undo(now: set[Any]) -> Callable[[], None]:
    before = set(now)

    def undo() -> None:
        if now != before:
            now.clear()
            now.update(before)

    return undo


def _same(now: Iterable[object], before: list[Any]) -> bool:
    """Whether they are the same objects in the same order."""
    return [*map(id, now)] == [id(part) for parts in before for part in parts]
