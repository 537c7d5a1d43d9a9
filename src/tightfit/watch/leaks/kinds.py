"""What kind of hold a chain is, from the objects along it."""

from __future__ import annotations

import logging
import re
import threading
from itertools import pairwise
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any

import torch
from torch import nn

from tightfit.watch.leaks.frames import finished_thread
from tightfit.watch.leaks.graphs import has_history
from tightfit.watch.leaks.holders import CACHE, attributes_of, is_future, isinstance_of
from tightfit.watch.leaks.leak import Hold
from tightfit.watch.leaks.links import is_small_view
from tightfit.watch.leaks.roots import Root

_RESULTS = re.compile(r"_{1,3}|_i?\d+|Out|_oh")
_PROMPTS = ("__main__", "builtins")
_NAMESPACE = "user_ns"
"""What IPython's shell calls the names that a user gave."""
_SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)


def kind_of(path: list[Any], storage_bytes: int) -> Hold:
    """The most telling of what is on the way from the root to the tensor."""
    root, *way = path
    if _is_interactive(way):
        return Hold.INTERACTIVE
    if any(isinstance_of(each, (logging.LogRecord, logging.Handler)) for each in way):
        return Hold.LOGGER
    if any(is_future(each) for each in way):
        return Hold.FUTURE
    if any(isinstance_of(each, (BaseException, TracebackType)) for each in way):
        return Hold.EXCEPTION
    if any(_is_of_finished_thread(each) for each in way):
        return Hold.THREAD
    if any(isinstance_of(each, _SUSPENDED) for each in way):
        return Hold.GENERATOR
    if any(isinstance_of(each, CACHE) for each in way):
        return Hold.CACHE
    if any(isinstance_of(each, (CellType,)) for each in way):
        return Hold.CLOSURE
    if any(has_history(a) and isinstance_of(b, (torch.Tensor,)) for a, b in pairwise(way)):
        return Hold.HISTORY
    if is_small_view(path[-1], storage_bytes):
        return Hold.VIEW
    if any(isinstance_of(each, (nn.Module,)) for each in way):
        return Hold.ATTRIBUTE
    return Hold.FRAME if isinstance(root, Root) and root.runs else Hold.GLOBAL


def _is_interactive(way: list[Any]) -> bool:
    """Whether a prompt's last results lead on: of Python's own, or in the names of IPython."""
    for before, table, held in zip([None, *way], way, way[1:], strict=False):
        if not isinstance(table, dict) or not _belongs_to_prompt(before, table):
            continue
        names = (name for name, value in list(table.items()) if value is held)
        if any(isinstance(name, str) and _RESULTS.fullmatch(name) for name in names):
            return True
    return False


def _belongs_to_prompt(before: Any, table: dict[Any, Any]) -> bool:
    if isinstance(before, ModuleType):
        return before.__name__ in _PROMPTS and vars(before) is table
    names = before if isinstance(before, dict) else attributes_of(before)
    return names.get(_NAMESPACE) is table


def _is_of_finished_thread(each: Any) -> bool:
    if isinstance_of(each, (threading.Thread,)):
        return each.ident is not None and not each.is_alive()
    return isinstance_of(each, (FrameType,)) and finished_thread(each) is not None
