"""Plans of networks in strips, remembered for as long as the network is there."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.place import placed
from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.playing import Rates
from tightfit.plan.strips.stages import staged
from tightfit.run.ladder import Keepsakes
from tightfit.run.strips.program import Program, programmed
from tightfit.run.strips.scratch import Scratch
from tightfit.weigh.network.fingerprint import fingerprint
from tightfit.weigh.network.recorder import UntoldError, record

_REMEMBERED = 4
RATES = Rates(flops=100e12, link=25e9)
"""Only their ratio matters, to what is kept where: of a card of today on its usual link."""


@dataclass(frozen=True)
class Strips:
    """A call that can be run in strips.

    Attributes:
        program: what it does.
        laying: lays it out for a room.
    """

    program: Program
    laying: Laying


@dataclass(frozen=True)
class Asked:
    """What a plan depends on, beside the module.

    Attributes:
        name: which call of the module.
        shape: of one item, [1,C,…].
        dtype: of it.
        device: where it will run.
        scratch: what operators take beside.
        allocator: of the card.
        ceiling: elements that an operator may give there; None is no limit.
        rates: of the card.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    scratch: Scratch
    allocator: str
    ceiling: int | None = None
    rates: Rates = RATES


_Plans = OrderedDict[tuple[Asked, Hashable], Strips | str]
_known: weakref.WeakKeyDictionary[nn.Module, _Plans] = weakref.WeakKeyDictionary()


def strips_of(
    module: nn.Module,
    call: Callable[[torch.Tensor], torch.Tensor],
    asked: Asked,
    *,
    reset: Callable[[], None],
) -> Strips | str:
    """How `call` of `module` runs in strips; or why it does not, in words.

    A module that was changed meanwhile is looked at anew. `reset` drops what it keeps on itself.
    """
    known = _known.setdefault(module, OrderedDict())
    key = (asked, fingerprint(module))
    if key not in known:
        made = _made(module, call, asked, reset)
        key = (asked, fingerprint(module))  # a first call may leave attributes
        known[key] = made
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]


def _made(
    module: nn.Module,
    call: Callable[[torch.Tensor], torch.Tensor],
    asked: Asked,
    reset: Callable[[], None],
) -> Strips | str:
    keepsakes = Keepsakes(module, device=torch.device("meta"))
    try:
        with placed(module, "meta"):
            source = torch.empty(asked.shape, dtype=asked.dtype, device="meta")
            graph = record(module, call, source)
    except UntoldError as error:
        return str(error)
    except Exception as error:  # whatever it is: a whole run of the network raises it too
        said = (str(error).strip().splitlines() or [""])[0][:200]
        return f"it cannot be run without values ({type(error).__name__}: {said})"
    finally:
        with suppress(Exception):  # its own way may fail; by name never does
            reset()
        keepsakes.drop()
    # The longer axis is cut: it gives the most strips, and each has the least halo.
    lengths = asked.shape[-2:] if len(asked.shape) > 3 else (asked.shape[-1],)
    from_end = 2 if len(lengths) == 2 and lengths[0] >= lengths[1] else 1
    program = programmed(graph, from_end=from_end, device=asked.device, scratch=asked.scratch)
    stages = staged(program.network)
    laying = Laying(program.network, stages, asked.rates, asked.allocator, asked.ceiling)
    return Strips(program, laying)
