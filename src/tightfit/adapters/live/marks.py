"""Where a pipeline's call is: told at each step of its scheduler, and before each decode."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

OnStep = Callable[[int, int], None]
"""Told, after a step, how many are done and how many there will be."""
OnCode = Callable[[str, nn.Module, torch.Tensor], None]
"""Told ``encode`` or ``decode``, the VAE, and what it is given, before it begins."""


OnLatents = Callable[[torch.Tensor, torch.Tensor], None]
"""Told the latents before a step and after it, where they are."""


@contextmanager
def marked(
    pipe: Any, *, on_step: OnStep, on_code: OnCode, on_latents: OnLatents | None = None
) -> Iterator[None]:
    """While inside, calls of `pipe` tell where they are; what raises there, ends the call."""
    with ExitStack() as stack:
        stack.enter_context(_steps(pipe, on_step, on_latents))
        for part in pipe.components.values():
            module = getattr(part, "_orig_mod", part)
            if isinstance(module, nn.Module) and hasattr(module, "encode"):
                stack.enter_context(_codings(module, on_code))
        yield


@contextmanager
def _steps(pipe: Any, on_step: OnStep, on_latents: OnLatents | None) -> Iterator[None]:
    done = itertools.count(1)

    def after(sample: Any, value: Any) -> None:
        count = next(done)
        on_step(count, _steps_in_all(pipe, count))
        made = value[0] if isinstance(value, tuple) else getattr(value, "prev_sample", None)
        if on_latents is None or not isinstance(sample, torch.Tensor):
            return
        if isinstance(made, torch.Tensor):
            on_latents(sample, made)

    with _instead(pipe.scheduler, "step", _Step(pipe.scheduler.step, after)):
        yield


class _Step:
    """Stands in a scheduler for its `step`; a copy of the scheduler goes without."""

    def __init__(self, own: Callable[..., Any], after: Callable[[object, Any], None]) -> None:
        functools.update_wrapper(self, own)  # pipelines look at what it takes
        self._own = own
        self._after = after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self._own(*args, **kwargs)
        self._after(args[2] if len(args) > 2 else kwargs.get("sample"), value)
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._own, memo)


def _steps_in_all(pipe: Any, done: int) -> int:
    count = getattr(pipe, "_num_timesteps", None)
    if not isinstance(count, int):
        count = len(pipe.scheduler.timesteps)
    return max(done, count)


@contextmanager
def _codings(module: nn.Module, on_code: OnCode) -> Iterator[None]:
    """A VAE in strips or tiles calls its own methods again: those are not told of."""
    inside = threading.local()
    with ExitStack() as stack:
        for name in ("encode", "decode"):
            own = getattr(module, name, None)
            if own is None:
                continue

            def coded(*args: Any, name: str = name, own: Any = own, **kwargs: Any) -> Any:
                if getattr(inside, "now", False):
                    return own(*args, **kwargs)
                source = args[0] if args else kwargs.get("z", kwargs.get("x"))
                inside.now = True
                try:
                    if isinstance(source, torch.Tensor):
                        on_code(name, module, source)
                    return own(*args, **kwargs)
                finally:
                    inside.now = False

            stack.enter_context(_instead(module, name, functools.wraps(own)(coded)))
        yield


@contextmanager
def _instead(owner: Any, name: str, method: Any) -> Iterator[None]:
    """While inside, `owner` has `method` under `name`."""
    before = vars(owner).get(name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        if before is None:
            vars(owner).pop(name, None)
        else:
            setattr(owner, name, before)
