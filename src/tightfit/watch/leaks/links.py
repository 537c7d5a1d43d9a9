"""A path of objects as a chain that people can read, such as ``module app → vae._feat_map[3]``."""

from __future__ import annotations

import re
import threading
from collections import deque
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

import torch

from tightfit.units import format_bytes
from tightfit.watch.leaks.frames import finished_thread, name_of_local, place_of
from tightfit.watch.leaks.graphs import gradient, has_history
from tightfit.watch.leaks.holders import CACHE, attributes_of, is_future, is_record, suspended_frame
from tightfit.watch.leaks.roots import Root

_LONGEST = 40
_SAID_IN_KEYS = (str, int, float, bool, bytes, type(None), torch.dtype, torch.device)
_TABLES = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_ATTRIBUTES_OF_ERRORS = ("__cause__", "__context__", "__traceback__", "args")
_SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)


def chain_of(path: list[Any]) -> tuple[str, ...]:
    """What leads from the first object of `path` to the last; each refers to the next.

    Attributes, keys and indices that follow one another are one link, written as in Python.
    """
    writer = _Writer()
    for at, (holder, held) in enumerate(pairwise(path)):
        writer.step(holder, held, path[at - 1] if at else None)
    return writer.done()


def summary(tensor: Any, storage_bytes: int) -> str:
    """What lies at the end of a chain."""
    if not issubclass(type(tensor), torch.Tensor):
        return f"{type(tensor).__name__}, {format_bytes(storage_bytes)}"
    shape = ", ".join(map(str, tensor.shape))
    what = f"Tensor [{shape}] {str(tensor.dtype).removeprefix('torch.')}"
    own = tensor.numel() * tensor.itemsize
    if is_small_view(tensor, storage_bytes):
        return f"{what}, a view of {format_bytes(own)} that pins {format_bytes(storage_bytes)}"
    return f"{what}, {format_bytes(storage_bytes)}"


def is_small_view(tensor: Any, storage_bytes: int) -> bool:
    """Whether it shows less than half of what it keeps alive."""
    if not issubclass(type(tensor), torch.Tensor) or tensor.layout is not torch.strided:
        return False
    return bool(2 * tensor.numel() * tensor.itemsize < storage_bytes)


class _Writer:
    """Puts links together while a path is followed."""

    def __init__(self) -> None:
        self._links: list[str] = []
        self._word = ""

    def done(self) -> tuple[str, ...]:
        """All links; tables of modules are written as the attributes they stand for."""
        self._end()
        return tuple(self._links)

    def step(self, holder: Any, held: Any, before: Any) -> None:
        """`holder`, which `before` led to, refers to `held`."""
        if type(holder) is Root:
            self._link(holder.text)
            self._more(holder.name_of(held))
        elif isinstance(holder, ModuleType):
            if type(before) is not Root or not before.text.startswith("module "):
                self._link(f"module {holder.__name__}")
        elif isinstance(holder, TracebackType):
            if isinstance(held, FrameType):
                self._end()
        elif isinstance(holder, FrameType):
            thread = finished_thread(holder)
            whose = f", of the finished thread {thread}" if thread else ""
            self._link(f"frame {place_of(holder)}{whose}")
            if held is not holder.f_back:
                self._more(f"local {name_of_local(holder, held) or 'that has no name'}")
        elif isinstance(holder, BaseException):
            self._error(holder, held)
        elif isinstance(holder, _SUSPENDED):
            self._suspended(holder, held)
        elif isinstance(holder, FunctionType):
            self._function(holder, held)
        elif isinstance(holder, CACHE):
            self._mark(f"cache of {getattr(holder, '__qualname__', '?')}")
            self._end()
        elif isinstance(holder, CellType):
            return
        elif has_history(holder) and isinstance(held, torch.Tensor):
            self._link("history", more=True)
        elif isinstance(holder, tuple) and _is_closure(before, holder):
            place = next(at for at, cell in enumerate(holder) if cell is held)
            self._link(f"closure {before.__code__.co_freevars[place]}", more=True)
        elif isinstance(holder, dict):
            self._dict(holder, held, before)
        elif isinstance(holder, (list, tuple, deque)):
            at = next((at for at, each in enumerate(holder) if each is held), None)
            self._more(_attribute(holder, held) if at is None else f"[{at}]")
        elif isinstance(holder, (set, frozenset)):
            self._more("{…}")
        else:
            self._object(holder, held)

    def _dict(self, holder: dict[Any, Any], held: Any, before: Any) -> None:
        key = _key_of(holder, held)
        if key is _NO_KEY:
            self._more(_attribute(holder, held))
        elif _is_cache_table(before, holder) or isinstance(before, threading.local):
            return
        elif isinstance(key, str) and _is_namespace(before, holder):
            self._more(f".{key}" if self._word else key)
        else:
            self._more(f"[{_said(key)}]")

    def _error(self, holder: BaseException, held: Any) -> None:
        self._mark(type(holder).__name__)
        self._end()
        for name in _ATTRIBUTES_OF_ERRORS:
            if getattr(holder, name, None) is held:
                self._link(name.strip("_"), more=True)
                return
        self._object(holder, held)

    def _suspended(self, holder: Any, held: Any) -> None:
        frame = suspended_frame(holder)
        if frame is None or held is frame:
            self._mark(f"suspended {holder.__qualname__}")
            self._end()
            return
        self._mark(f"suspended {place_of(frame)}")
        self._link(f"local {name_of_local(frame, held) or 'that has no name'}", more=True)

    def _function(self, holder: FunctionType, held: Any) -> None:
        where = f"{Path(holder.__code__.co_filename).name}:{holder.__code__.co_firstlineno}"
        self._mark(f"function {holder.__qualname__} at {where}")
        self._end()
        if held is holder.__closure__:
            return
        for name in ("__defaults__", "__kwdefaults__", "__dict__", "__wrapped__"):
            if getattr(holder, name, None) is held:
                self._more("" if name == "__dict__" else name)
                return
        self._more(_attribute(holder, held))

    def _object(self, holder: Any, held: Any) -> None:
        if is_future(holder) or is_record(holder):
            self._mark(type(holder).__name__)
            self._end()
        if isinstance(holder, (type, threading.local)) and isinstance(held, dict):
            return  # what a class or a thread's variable is made of
        if held is attributes_of(holder):
            return
        name = _attribute(holder, held)
        self._more(name if self._word else name.removeprefix("."))

    # Links

    def _link(self, text: str, *, more: bool = False) -> None:
        """A new link; with `more`, what follows is written on to it."""
        self._end()
        if more:
            self._word = text
        else:
            self._links.append(text)

    def _more(self, text: str) -> None:
        self._word += text

    def _mark(self, text: str) -> None:
        """Say what the last word stands for."""
        self._word = f"{self._word} ({text})" if self._word else text

    def _end(self) -> None:
        if self._word:
            self._links.append(_TABLES.sub(r".\1", self._word))
        self._word = ""


_NO_KEY = object()


def _key_of(holder: dict[Any, Any], held: Any) -> Any:
    return next((key for key, value in list(holder.items()) if value is held), _NO_KEY)


def _said(key: Any) -> str:
    """Only keys whose words run no code of somebody's."""
    if isinstance(key, tuple):
        return f"({', '.join(map(_said, key))})"
    text = repr(key) if type(key) in _SAID_IN_KEYS else f"<{type(key).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _is_namespace(before: Any, table: dict[Any, Any]) -> bool:
    """Whether `table` holds the attributes of `before`."""
    if before is None or isinstance(before, (dict, list, tuple)):
        return False
    return isinstance(before, type) or attributes_of(before) is table


def _is_cache_table(before: Any, table: dict[Any, Any]) -> bool:
    return isinstance(before, CACHE) and before.__dict__ is not table


def _is_closure(before: Any, cells: tuple[Any, ...]) -> bool:
    return isinstance(before, FunctionType) and before.__closure__ is cells


def _attribute(holder: Any, held: Any) -> str:
    """The attribute of `holder` that is `held`, or its class where none is seen to be."""
    if gradient(holder) is held:
        return ".grad"
    if isinstance(holder, MethodType):
        return ".__self__" if held is holder.__self__ else ".__func__"
    if isinstance(holder, partial):
        for name in ("func", "args", "keywords"):
            if getattr(holder, name) is held:
                return f".{name}"
    key = _key_of(attributes_of(holder), held)
    if isinstance(key, str):
        return f".{key}"
    for kind in type(holder).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if getattr(holder, name, None) is held:
                return f".{name}"
    if held is type(holder):
        return ".__class__"
    return f".<{type(holder).__name__}>"
