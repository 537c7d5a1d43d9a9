"""The one door to diffusers and transformers: classes by name, in silence, one thread at a time."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tightfit.errors import InputError, TightfitError

LOADING = threading.RLock()
"""Imports, random weights and muted loggers are the process's: one module is loaded at a time."""
_CHATTY = ("diffusers", "transformers", "huggingface_hub")


def class_named(library: str, name: str) -> Any:
    """The class `name` of ``diffusers`` or ``transformers``, which is imported for it.

    Raises `InputError` where the installed version has no such class.
    """
    # diffusers puts another module in its own place while it is imported, and a thread that waits
    # for that import is given the first one, which is empty.
    with LOADING:
        if library == "transformers":
            import transformers as module
        else:
            import diffusers as module
        found = getattr(module, name, None)
    if found is None:
        raise InputError(f"`{name}` is no class of the {library} that is installed here.")
    return found


@contextmanager
def said_by_us(what: str) -> Iterator[None]:
    """What the loaders of three libraries raise becomes `InputError`, what they log is dropped."""
    try:
        with quiet():
            yield
    except TightfitError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{what} cannot be loaded: {type(error).__name__}"
            f"{': ' + reason[0][:200].rstrip('.') if reason else ''}."
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """While inside, the libraries that load and fetch neither log nor warn: we report."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    with LOADING, warnings.catch_warnings():
        levels = [logger.level for logger in loggers]
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
