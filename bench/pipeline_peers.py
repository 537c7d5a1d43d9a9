"""Other ways to run a whole pipeline on a small card: libraries that users have today.

None of them is a part of this project; one that is not installed is a row with a note. Each returns
what its row says of how it was set up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipeline_jobs import GROUP, MMGP, MODEL
from torch import nn

from tightfit.card import Card
from tightfit.card.host_memory import read_host_memory
from tightfit.units import GIB, MIB, format_bytes
from tightfit.weigh import identity, weights

HOST_MARGIN = 8 * GIB
"""Of host memory, what is left for everything but pinned weights."""


@dataclass(frozen=True)
class Told:
    """What a peer knows of its card.

    Attributes:
        card: it runs on.
        room: bytes of it that are free.
        activations: bytes that a step takes beside weights.
        margin: bytes that those who are told a budget leave free beside both.
    """

    card: Card
    room: int
    activations: int
    margin: int


def prepare(who: str, pipe: Any, told: Told) -> str:
    """Make `pipe`, on the host, ready to be called. Raises what the library raises."""
    return _PREPARE[who](pipe, told)


def takes_margin(who: str) -> bool:
    """Whether a peer is told how much to take; the others take what they take."""
    return who == MMGP


def pinned_bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes that PyTorch pins for every weight by itself: it rounds up to a power of two."""
    sizes = {
        identity(held.tensor): held.tensor.nbytes for module in modules for held in weights(module)
    }
    return sum(1 << (size - 1).bit_length() for size in sizes.values() if size)


def leaf_by_leaf(card: Card, modules: Iterable[nn.Module]) -> tuple[dict[str, Any], str]:
    """How diffusers offloads groups of one layer, and what a row says of it.

    With a stream of copies where there are streams. All weights are pinned at the start, as is the
    default, unless the host has no room for that.
    """
    streams = card.kind == "cuda"
    asked = pinned_bytes(modules)
    scarce = streams and asked > read_host_memory().available - HOST_MARGIN
    how = {
        "onload_device": card.device,
        "offload_type": "leaf_level",
        "use_stream": streams,
        "record_stream": streams,
        "low_cpu_mem_usage": scarce,
    }
    if not scarce:
        return how, ""
    return how, f"pins as it goes: there is no room on the host for {format_bytes(asked)} pinned"


def _model_offload(pipe: Any, told: Told) -> str:
    pipe.enable_model_cpu_offload(device=told.card.device)
    return ""


def _group_offload(pipe: Any, told: Told) -> str:
    networks = [each for each in pipe.components.values() if isinstance(each, nn.Module)]
    how, said = leaf_by_leaf(told.card, networks)
    pipe.enable_group_offload(**how)
    return said


def _mmgp(pipe: Any, told: Told) -> str:
    """In its own profile for small cards, with everything pinned and nothing quantised.

    The profile would have text encoders of the T5 kind in eight bits.
    """
    offload: Any = import_module("mmgp.offload")
    budget = max(MIB, told.room - told.activations - told.margin)
    offload.profile(
        pipe,
        profile_no=4,
        quantizeTransformer=False,
        extraModelsToQuantize=[],
        pinnedMemory=True,
        perc_reserved_mem_max=0.9,
        budgets={"*": budget // MIB},
        verboseLevel=1,
    )
    return f"told {format_bytes(budget)}"


_PREPARE: dict[str, Callable[[Any, Told], str]] = {
    MODEL: _model_offload,
    GROUP: _group_offload,
    MMGP: _mmgp,
}
