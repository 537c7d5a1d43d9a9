"""What dry runs told of a network, remembered for as long as the network is there."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from torch import nn

from tightfit.weigh.network.fingerprint import fingerprint

_REMEMBERED = 64


class Told(NamedTuple):
    """What a dry run told: the peak of new tensors and scratch, and what fragments cost beside."""

    bytes: int
    fragments: int


_known: weakref.WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Told | None]] = (
    weakref.WeakKeyDictionary()
)


def told(module: nn.Module, asked: Hashable, run: Callable[[], Told | None]) -> Told | None:
    """What `run` tells of `module` for what is `asked`; None where it cannot be told.

    A module that was changed meanwhile is run anew.
    """
    known = _known.setdefault(module, OrderedDict())
    key = (asked, fingerprint(module))
    if key not in known:
        found = run()
        key = (asked, fingerprint(module))  # a first call may leave attributes
        known[key] = found
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]
