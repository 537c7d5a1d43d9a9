"""Which modules are being streamed: no weight can be in two places."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack

from torch import nn

from tightfit.errors import UsageError
from tightfit.weigh.tensors import weights

_claimed: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()
"""For each, the paths of its tensors by their ids: the module keeps them alive."""
_guard = threading.Lock()


def claim(module: nn.Module, stack: ExitStack) -> None:
    """Until `stack` is closed, no other session gets `module`, its parts, or what contains it.

    Raises `UsageError` naming what is streamed already.
    """
    mine: dict[int, str] = {}
    for held in weights(module):
        mine.setdefault(id(held.tensor), held.path)
    name = type(module).__name__
    with _guard:
        if module in _claimed:
            raise UsageError(f"`{name}` is being streamed already.")
        for other, theirs in _claimed.items():
            _refuse_parts(module, mine, other, theirs)
        _claimed[module] = mine
    stack.callback(_let_go, module)


def _refuse_parts(
    module: nn.Module, mine: dict[int, str], other: nn.Module, theirs: dict[int, str]
) -> None:
    name, outer = type(module).__name__, type(other).__name__
    for path, part in module.named_modules():
        if part is other:
            raise UsageError(
                f"`{path}` of `{name}` is being streamed already, by itself: unfit it first, and "
                "it is streamed with the whole."
            )
    for path, part in other.named_modules():
        if part is module:
            raise UsageError(
                f"`{name}` is being streamed already, as `{path}` of `{outer}`: unfit that first."
            )
    shared = next((key for key in mine if key in theirs), None)
    if shared is not None:
        raise UsageError(
            f"`{mine[shared]}` of `{name}` is being streamed already, as `{theirs[shared]}` of "
            f"`{outer}`: put both into one module, or unfit that first."
        )


def _let_go(module: nn.Module) -> None:
    with _guard:
        _claimed.pop(module, None)
