"""What runs on the CPUs: an item is looked at, read and decoded, when there is room for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tightfit.api.batches.batch import ItemDone, failure
from tightfit.api.batches.made_from import content_of, latent_is_made, made_of
from tightfit.api.sources import Selection, looking, read
from tightfit.cluster.desk import TRIES
from tightfit.cluster.parcel import Parcel, to_table
from tightfit.cluster.shards.groups import held
from tightfit.cluster.task import Order, Task
from tightfit.errors import InputError, JobFailed
from tightfit.media.info import MediaInfo
from tightfit.run.vae import Traits

_PAUSES = (0.02, 0.5)
"""Seconds between two questions for room: the first, and the longest."""
_UNKNOWN = 256
"""Frames of a clip whose header says nothing."""
_STILL = 12
"""Bytes that a pixel of a picture takes: three floats."""
_RATE = Fraction(30)


class Asked(Protocol):
    """The desk, from where a worker is."""

    def begin(self, item: int, stage: str) -> int: ...
    def end(self, item: int, stage: str) -> None: ...
    def ask(self, item: int, machine: str, size: int) -> bool: ...
    def done(self, item: int) -> None: ...


class Reader:
    """Reads and decodes items, one row for each."""

    def __init__(self, order: Order, desk: Asked, machine: str) -> None:
        self._order, self._desk, self._machine = order, desk, machine

    def __call__(self, tasks: Iterable[Task]) -> Iterator[pa.Table]:
        """A row for each item; what is wrong with one becomes its row."""
        for task in tasks:
            yield to_table(self._one(task))

    def _one(self, task: Task) -> Parcel:
        fallen = self._desk.begin(task.index, "look")
        if fallen >= TRIES:
            return Parcel(task, done=fell(task, "looked at"))
        try:
            content = content_of(task.source)
            if task.sha256 not in (None, content):
                raise InputError(
                    f"Cannot use {task.source}: its SHA-256 is {content}, and the manifest says "
                    f"{task.sha256}."
                )
            made = made_of(content, self._order.told, self._order.settings)
            output = _made_before(task, made)
            if output is not None:
                kept = ItemDone(task.source, task.out, "kept")
                return Parcel(task, made, done=kept, output=output)
            return self._read(task, made)
        except Exception as error:
            return Parcel(task, done=failure(task.item, error))

    def _read(self, task: Task, made: dict[str, Any]) -> Parcel:
        order = self._order
        with looking(task.source, order.selection) as seen:
            size = decoded_bytes(seen.info, order.selection, order.traits, task)
            self._wait(task.index, size)
            if self._desk.begin(task.index, "read") >= TRIES:
                return Parcel(task, made, done=fell(task, "read"))
            footage = read(task.source, order.selection, seen, order.traits)
        self._desk.end(task.index, "read")
        return Parcel(task, made, footage)

    def _wait(self, index: int, size: int) -> None:
        """Until there is room for what is about to be decoded."""
        pause, longest = _PAUSES
        self._desk.end(index, "look")
        while not self._desk.ask(index, self._machine, size):
            time.sleep(pause)
            pause = min(2 * pause, longest)


def _made_before(task: Task, made: dict[str, Any]) -> tuple[str, int] | None:
    """SHA-256 and size of an output that is there and right: by itself, or in its shard."""
    if task.out.is_file() and latent_is_made(task.out, made):
        return output_of(task.out)
    member = None if task.shard is None else held(task.shard, task.name, made)
    return None if member is None else (member.sha256, member.size)


def output_of(out: Path) -> tuple[str, int]:
    return content_of(out), out.stat().st_size


def fell(task: Task, doing: str) -> ItemDone:
    """An item that took too many workers with it is set aside."""
    error = JobFailed(
        f"The job failed: its worker died {TRIES} times while {task.source} was {doing}; it is set "
        "aside. Try it alone, where its memory can be watched."
    )
    return failure(task.item, error)


def decoded_bytes(info: MediaInfo | None, selection: Selection, traits: Traits, task: Task) -> int:
    """What a source takes when it is decoded, as far as its header tells."""
    if info is None:
        return 0
    if info.kind == "sound" or traits.axes == 1:
        return 24 * task.source.stat().st_size
    pixels = info.width * info.height
    if info.kind == "picture":
        return pixels * _STILL
    frames = info.frames or _UNKNOWN
    if selection.seconds is not None:
        start, stop = selection.seconds
        if stop is not None:
            frames = min(frames, int((stop - start) * (info.fps or _RATE)) + 1)
    if selection.frames is not None:
        frames = len(range(*selection.frames.indices(frames)))
    return frames * pixels * (4 if selection.keep_alpha and info.has_alpha else 3)
