"""A trace as a memory snapshot of PyTorch, which its own viewer opens."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tightfit.allocators.base import Block
from tightfit.allocators.pools import Pool
from tightfit.errors import InputError
from tightfit.report.trace_file import Trace

_FIRST = 1 << 40
"""Where addresses begin for moves that have none; no driver hands out such."""
_SITE = re.compile(r"(?P<file>.+?):(?P<line>\d+) (?P<name>.+)")

Entry = dict[str, Any]


def as_snapshot(trace: Trace) -> bytes:
    """The pickle that ``python -m torch.cuda._memory_viz trace_plot`` takes.

    A trace of the native allocator has the addresses there really were. Where a trace has none
    (virtual cards), every allocation gets one by best fit within what was reserved: sizes, times
    and sums are those of the trace, neighbours are not. Raises `InputError` for a trace without a
    fine level.
    """
    if not any(event["event"] in ("allocate", "reserve") for event in trace.events):
        raise InputError(
            "This trace has no single allocations, so there is nothing for PyTorch's viewer: "
            "write one with --trace."
        )
    book = _Book()
    entries = [entry for event in trace.events for entry in book.entries(event)]
    return pickle.dumps(
        {
            "segments": book.segments(),
            "device_traces": [entries],
            "allocator_settings": {},
            "external_annotations": [],
        }
    )


class _Book:
    """Which addresses are reserved and allocated, from one event to the next."""

    def __init__(self) -> None:
        self._model = _Addresses()
        self._segments: dict[int, int] = {}
        self._live: dict[int, tuple[int, list[Entry]]] = {}

    def entries(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        """What PyTorch would have written for it."""
        kind, at = event["event"], float(event["t"])
        if kind == "reserve":
            yield self._reserve(event, at)
        elif kind == "release":
            address = event.get("address")
            if address is None:
                address = self._model.release(event["bytes"])
            if address is not None:
                self._segments.pop(address, None)
                yield _entry("segment_free", address, event["bytes"], at)
        elif kind == "allocate":
            yield from self._allocate(event, at)
        elif kind == "free":
            known = event.get("address")
            gone = self._model.free(event["bytes"]) if known is None else [known]
            for address in gone:
                if address not in self._live:
                    continue  # it came before the trace begins
                size, frames = self._live.pop(address)
                for action in ("free_requested", "free_completed"):
                    yield _entry(action, address, size, at, frames)
        elif kind == "oom":
            yield _entry("oom", 0, 0, at) | {"device_free": 0}

    def segments(self) -> list[Entry]:
        """What is reserved at the end, block by block."""
        reserved = sorted(self._segments.items())
        inside: dict[int, list[tuple[int, int, list[Entry]]]] = defaultdict(list)
        starts = [address for address, _ in reserved]
        position = -1
        for address, (size, frames) in sorted(self._live.items()):
            while position + 1 < len(starts) and starts[position + 1] <= address:
                position += 1
            if position < 0 or address >= starts[position] + reserved[position][1]:
                inside[address].append((address, size, frames))  # its reserve is not in the trace
                reserved.append((address, size))
            else:
                inside[starts[position]].append((address, size, frames))
        return [_segment(start, size, inside[start]) for start, size in sorted(reserved)]

    def _reserve(self, event: Mapping[str, Any], at: float) -> Entry:
        size, address = event["bytes"], event.get("address")
        if address is None:
            address = self._model.reserve(size)
        self._segments[address] = size
        return _entry("segment_alloc", address, size, at)

    def _allocate(self, event: Mapping[str, Any], at: float) -> Iterator[Entry]:
        size, address, frames = event["bytes"], event.get("address"), _frames(event.get("by"))
        if address is None:
            address = self._model.allocate(size)
            if address is None:  # what it lies in was reserved before the trace begins
                yield self._reserve({"bytes": size}, at)
                address = self._model.allocate(size)
                assert address is not None
        self._live[address] = (size, frames)
        yield _entry("alloc", address, size, at, frames)


class _Addresses:
    """Addresses for moves that have none: best fit within segments as they were reserved."""

    def __init__(self) -> None:
        self._pool = Pool(split_above=0)
        self._next = _FIRST
        self._by_size: dict[int, list[Block]] = defaultdict(list)

    def reserve(self, size: int) -> int:
        block = Block(self._next, size, self._pool)
        self._next += size + (-size % 512) + 512  # never side by side: they were not one
        self._pool.heads.append(block)
        self._pool.put(block)
        return block.offset

    def release(self, size: int) -> int | None:
        """A segment of that size that is wholly free; None where there is none."""
        for block in self._pool.free_blocks():
            if block.size == size and block.before is None and block.after is None:
                self._pool.unlist(block)
                self._pool.heads.remove(block)
                return block.offset
        return None

    def allocate(self, size: int) -> int | None:
        block = self._pool.find(size)
        if block is None:
            return None
        self._pool.cut(block, size)
        self._by_size[size].append(block)
        return block.offset

    def free(self, size: int) -> list[int]:
        """Of those of that size, the one that came last; several, where they were told as one."""
        gone = []
        while size > 0:
            one = size if self._by_size.get(size) else self._largest(size)
            if not one:
                break
            block = self._by_size[one].pop()
            gone.append(block.offset)
            self._pool.put(block)
            size -= one
        return gone

    def _largest(self, most: int) -> int:
        """The largest size there is that is no more than `most`; 0 where there is none."""
        return max(
            (size for size, there in self._by_size.items() if there and size <= most), default=0
        )


def _segment(start: int, size: int, inside: list[tuple[int, int, list[Entry]]]) -> Entry:
    blocks: list[Entry] = []
    at, allocated = start, 0
    for address, taken, frames in inside:
        if address > at:
            blocks.append(_block(at, address - at, [], active=False))
        blocks.append(_block(address, taken, frames, active=True))
        at, allocated = address + taken, allocated + taken
    if at < start + size:
        blocks.append(_block(at, start + size - at, [], active=False))
    return {
        "device": 0,
        "address": start,
        "total_size": size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": allocated,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, size: int, frames: list[Entry], *, active: bool) -> Entry:
    return {
        "address": address,
        "size": size,
        "requested_size": size if active else 0,
        "state": "active_allocated" if active else "inactive",
        "frames": frames,
    }


def _entry(
    action: str, address: int, size: int, at: float, frames: list[Entry] | None = None
) -> Entry:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": round(at * 1e6),
        "frames": frames or [],
    }


def _frames(by: str | None) -> list[Entry]:
    if by is None:
        return []
    found = _SITE.fullmatch(by)
    if found is None:
        return [{"filename": by, "line": 0, "name": by}]
    return [{"filename": found["file"], "line": int(found["line"]), "name": found["name"]}]
