"""Other ways to run a network that is larger than its card: libraries that users have today.

None of them is a part of this project; one that is not installed is a row with a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from stream_jobs import ACCELERATE, BLOCK, LEAF, MMGP
from torch import nn

from tightfit.units import GIB, MIB

MARGINS = (GIB, 3 * GIB)
"""What those that are told a budget leave free beside activations; more, where that was too little.
"""
_HOST = 110 * GIB


@dataclass(frozen=True)
class Room:
    """What a peer is told.

    Attributes:
        device: to run on.
        weights: bytes of the card that weights may take.
    """

    device: torch.device
    weights: int


def budget_of(*, room: int, activations: int, margin: int) -> int:
    """Bytes of the card that weights may take; at least one MiB."""
    return max(MIB, room - activations - margin)


def takes_budget(who: str) -> bool:
    """Whether a peer is told how much to take; group offload takes what it takes."""
    return who in (MMGP, ACCELERATE)


def prepare(who: str, module: nn.Module, room: Room) -> None:
    """Make `module`, on the host, ready to run on `room.device`. Raises what the library raises."""
    _PREPARE[who](module, room)


def _group_leaf(module: nn.Module, room: Room) -> None:
    _group(module, room, offload_type="leaf_level")


def _group_block(module: nn.Module, room: Room) -> None:
    _group(module, room, offload_type="block_level", num_blocks_per_group=1)


def _group(module: nn.Module, room: Room, **how: object) -> None:
    """With a stream of copies where there are streams."""
    streams = room.device.type == "cuda"
    offload: Callable[..., None] = module.enable_group_offload  # type: ignore[assignment]
    offload(
        onload_device=room.device,
        offload_device=torch.device("cpu"),
        use_stream=streams,
        record_stream=streams,
        **how,
    )


def _mmgp(module: nn.Module, room: Room) -> None:
    """In its own profile for small cards, with everything pinned and nothing quantised."""
    offload: Any = import_module("mmgp.offload")
    offload.profile(
        {"transformer": module},
        profile_no=4,
        quantizeTransformer=False,
        pinnedMemory=True,
        perc_reserved_mem_max=0.9,
        budgets={"*": room.weights // MIB},
        verboseLevel=1,
    )


def _accelerate(module: nn.Module, room: Room) -> None:
    accelerate: Any = import_module("accelerate")
    index = room.device.index or 0
    whole = list(getattr(module, "_no_split_modules", None) or ())
    places = accelerate.infer_auto_device_map(
        module, max_memory={index: room.weights, "cpu": _HOST}, no_split_module_classes=whole
    )
    accelerate.dispatch_model(module, places, main_device=index)


_PREPARE: dict[str, Callable[[nn.Module, Room], None]] = {
    LEAF: _group_leaf,
    BLOCK: _group_block,
    MMGP: _mmgp,
    ACCELERATE: _accelerate,
}
