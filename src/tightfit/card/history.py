"""The caching allocator's own history of a CUDA card: every move, with its time and its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tightfit.card.base import Card

Action = Literal["allocate", "free", "reserve", "release"]
_ACTIONS: Mapping[str, Action] = {
    "alloc": "allocate",
    "free_requested": "free",
    "segment_alloc": "reserve",
    "segment_map": "reserve",
    "segment_free": "release",
    "segment_unmap": "release",
}
_OURS = Path(__file__).parents[1].as_posix() + "/"
_COMMANDS, _MODELS = f"{_OURS}cli/", f"{_OURS}testing/"
_TORCH = Path(torch.__file__).parent.as_posix() + "/"
_PLUMBING = ("/contextlib.py", "/threading.py", "/concurrent/futures/", "/typer/", "/click/")


@dataclass(frozen=True)
class Entry:
    """One move of the allocator.

    Attributes:
        action: what it did.
        bytes, address: with which memory; of tensors, the bytes that were asked for, which the
            allocator counts rounded up.
        at: seconds since 1970; None where this PyTorch does not tell.
        by: the Python code that asked, as ``file.py:line function``.
    """

    action: Action
    bytes: int
    address: int
    at: float | None
    by: str | None


@contextmanager
def recorded(card: Card, *, limit: int, stacks: bool = True) -> Iterator[list[Entry] | None]:
    """While inside, the allocator of `card` keeps a history; after it, the list has the entries.

    None where there is none to be had: the card is no CUDA card, its allocator is cudaMallocAsync,
    which keeps none, or somebody else records already. The allocator itself is never changed.

    Args:
        card: any.
        limit: at most so many entries are kept, the newest.
        stacks: whose code asked is kept as well, which takes the host far longer to read.
    """
    history: Any = torch.cuda.memory
    busy = getattr(torch._C, "_cuda_isHistoryEnabled", bool)
    if card.kind != "cuda" or card.allocator == "async" or busy():
        yield None
        return
    entries: list[Entry] = []
    history._record_memory_history(
        context="alloc" if stacks else None,
        stacks="python",
        max_entries=limit,
        clear_history=True,
        device=card.device,
    )
    try:
        yield entries
    finally:
        try:
            entries += entries_of(
                history._snapshot(card.device)["device_traces"][card.device.index]
            )
        finally:
            history._record_memory_history(enabled=None, device=card.device)


def entries_of(trace: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The moves in one device's trace of a snapshot of PyTorch; what else it tells is left out."""
    return [
        Entry(
            _ACTIONS[each["action"]],
            int(each["size"]),
            int(each["addr"]),
            each["time_us"] / 1e6 if "time_us" in each else None,
            _asked(each.get("frames", ())),
        )
        for each in trace
        if each["action"] in _ACTIONS
    ]


def _asked(frames: Sequence[Mapping[str, Any]]) -> str | None:
    """The innermost frame that is neither PyTorch's nor ours; folders are left out.

    What we ask for by ourselves has the file of ours beside it; of a command it is that alone.
    """
    ours: Mapping[str, Any] | None = None
    for frame in frames:
        name = str(frame["filename"]).replace("\\", "/")
        if not name.endswith(".py") or name.startswith(_TORCH):
            continue
        if name.startswith(_COMMANDS):
            break
        if any(each in name for each in _PLUMBING):
            continue
        if not name.startswith(_OURS) or name.startswith(_MODELS):
            return _written(frame) + ("" if ours is None else f", in {_within(ours)}")
        ours = ours or frame
    return None if ours is None else _written(ours, _within(ours))


def _within(frame: Mapping[str, Any]) -> str:
    """A file of ours, from the package on."""
    return "tightfit/" + str(frame["filename"]).replace("\\", "/").removeprefix(_OURS)


def _written(frame: Mapping[str, Any], name: str = "") -> str:
    name = name or str(frame["filename"]).rsplit("/", 1)[-1]
    return f"{name}:{frame['line']} {frame['name']}"
