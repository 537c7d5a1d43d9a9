"""Objects that are known to hold on to things, by what they are."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import sys
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any


@functools.lru_cache
def _cached() -> None:
    """Only its class is of use: functools does not show it."""


CACHE: tuple[type, ...] = (type(_cached),)
"""What `functools.lru_cache` and `functools.cache` make."""


def attributes_of(value: Any) -> dict[str, Any]:
    """Its table of attributes, without asking code of its own; empty where it has none."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return table if isinstance(table, dict) else {}


def is_future(value: Any) -> bool:
    """Of threads, processes or asyncio; the last without importing it."""
    asyncio: Any = sys.modules.get("asyncio")
    kinds = (concurrent.futures.Future, *((asyncio.Future,) if asyncio is not None else ()))
    return isinstance_of(value, kinds)


def is_record(value: Any) -> bool:
    """A log record."""
    return isinstance_of(value, (logging.LogRecord,))


def isinstance_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """By its real class: a lazy object may answer with another, and load a library for it."""
    return issubclass(type(value), kinds)


def suspended_frame(value: Any) -> FrameType | None:
    """The frame of a generator or coroutine that is suspended; None for others."""
    if isinstance_of(value, (GeneratorType,)):
        return value.gi_frame  # type: ignore[no-any-return]
    if isinstance_of(value, (CoroutineType,)):
        return value.cr_frame  # type: ignore[no-any-return]
    if isinstance_of(value, (AsyncGeneratorType,)):
        return value.ag_frame  # type: ignore[no-any-return]
    return None
