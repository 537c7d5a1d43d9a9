"""Letting go of what an exception holds.

A traceback references every frame between the raise and the handler, and a frame references its
locals: for a failed decode, gigabytes. Whoever keeps the exception keeps them.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tightfit.card import Card


def chain(error: BaseException, *, outside: BaseException | None = None) -> Iterator[BaseException]:
    """`error` and everything it refers to: causes, contexts, members of groups; each once.

    Not `outside`, nor what only it refers to: what our caller was handling when it called us is
    the context of every error raised since, and is neither ours to read nor to cut.
    """
    seen: set[int] = set() if outside is error else {id(outside)}
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions


def empty_frames(error: BaseException, *, outside: BaseException | None = None) -> None:
    """Drop the locals of every finished frame along the chain; the traceback stays readable."""
    for link in chain(error, outside=outside):
        if link.__traceback__ is not None:
            traceback.clear_frames(link.__traceback__)


def in_one_line(error: BaseException) -> str:
    """The type and the first line of what it says."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def cut(error: BaseException, *, outside: BaseException | None = None) -> str:
    """Drop frames and tracebacks along the whole chain; the text that remains of `error`."""
    text = in_one_line(error)
    empty_frames(error, outside=outside)
    for link in list(chain(error, outside=outside)):
        link.__traceback__ = None
    return text


@contextmanager
def leaving_nothing(card: Card) -> Iterator[None]:
    """An error that leaves here holds nothing of `card` in its frames, while somebody handles it.

    What functions inside a failed call closed over stays until the error is dropped, since the
    traceback is left for people to read.
    """
    outside = sys.exception()
    try:
        yield
    except BaseException as error:
        empty_frames(error, outside=outside)
        gc.collect()
        with suppress(RuntimeError):  # a broken device must not hide what broke it
            card.trim()
        raise
