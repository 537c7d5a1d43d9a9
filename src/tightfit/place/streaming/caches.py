"""Results that the methods of a module's classes remember, on whatever device they were made."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

_CACHED: Any = type(functools.cache(lambda: None))


def forget_cached(module: nn.Module) -> None:
    """Empty the `functools.cache` of methods of `module` and its parts.

    Position tables are kept so, by device; they belong to the class, so they would stay on a card
    for good. What is forgotten is worked out anew when it is asked for.
    """
    for kind in {base for part in module.modules() for base in type(part).__mro__}:
        for value in vars(kind).values():
            for cached in _caches_in(value):
                cached.cache_clear()


def _caches_in(value: Any) -> Iterator[Any]:
    """A method that is cached, or what a function wraps that is."""
    if isinstance(value, _CACHED):
        yield value
    for cell in getattr(value, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(content, _CACHED):
            yield content
