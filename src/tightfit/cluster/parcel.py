"""What was read of an item, as a row of a table that the object store keeps without a copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tightfit.api.batches.batch import ItemDone
from tightfit.api.reading import Reading
from tightfit.api.sources import Footage
from tightfit.cluster.task import Task
from tightfit.media.info import MediaInfo
from tightfit.run.vae import Traits

_TENSORS = ("frames", "alpha", "sound")


@dataclass(frozen=True)
class Parcel:
    """An item on its way from a reader to a card, or past it.

    Attributes:
        task: the item.
        made: what its output will be made of, as `made_from` tells.
        footage: what was read; None where nothing is left to do.
        done: what became of it already.
        output: SHA-256 and size of an output that was there.
    """

    task: Task
    made: dict[str, Any] | None = None
    footage: Footage | None = None
    done: ItemDone | None = None
    output: tuple[str, int] | None = None


def to_table(parcel: Parcel) -> pa.Table:
    """One row; the tensors lie in columns of their own."""
    footage = parcel.footage
    tensors: dict[str, torch.Tensor | None] = dict.fromkeys(_TENSORS)
    if footage is not None:
        sound = footage.sound
        tensors = {
            "frames": footage.frames,
            "alpha": footage.alpha,
            "sound": None if sound is None else sound.samples,
        }
        empty = torch.empty(0)
        footage = replace(
            footage,
            frames=empty,
            alpha=None,
            sound=None if sound is None else replace(sound, samples=empty),
        )
    arrays = {
        name: None if tensor is None else np.ascontiguousarray(tensor.numpy())
        for name, tensor in tensors.items()
    }
    shapes = {
        name: (str(array.dtype), array.shape) for name, array in arrays.items() if array is not None
    }
    head = pickle.dumps((replace(parcel, footage=footage), shapes))
    columns = {"head": pa.array([head], type=pa.large_binary())}
    for name, array in arrays.items():
        columns[name] = _binary(array)
    return pa.table(columns)


def from_table(table: pa.Table) -> Parcel:
    """The parcel of the one row; its tensors are copies, so the object store may let go."""
    parcel, shapes = pickle.loads(table["head"][0].as_buffer())
    footage = parcel.footage
    if footage is None:
        return parcel  # type: ignore[no-any-return]
    tensors = {
        name: torch.from_numpy(
            np.frombuffer(table[name][0].as_buffer(), dtype=dtype).reshape(shape).copy()
        )
        for name, (dtype, shape) in shapes.items()
    }
    sound = footage.sound
    whole = replace(
        footage,
        frames=tensors["frames"],
        alpha=tensors.get("alpha"),
        sound=None if sound is None else replace(sound, samples=tensors["sound"]),
    )
    return replace(parcel, footage=whole)  # type: ignore[no-any-return]


class Delivered(Reading):
    """What `encode` takes for a source that is being read, of one that was read elsewhere."""

    def __init__(self, footage: Footage) -> None:
        """Nothing is left to read."""
        self._whole = footage

    def close(self) -> None:
        """Nothing runs."""

    def go(self) -> None:
        """It is all there."""

    def whom(self, traits: Traits) -> None:
        """It was read for them."""

    def seen(self) -> MediaInfo | None:
        """It was looked at where it was read."""
        return None

    def coming(self) -> torch.Tensor | None:
        """Nothing is still to come."""
        return None

    def footage(self, check: Callable[[], None] = lambda: None) -> Footage:  # noqa: ARG002 it is here
        """All of it."""
        return self._whole


def _binary(array: np.ndarray[Any, Any] | None) -> pa.Array:
    """A column of one value, without a copy."""
    if array is None:
        return pa.nulls(1, type=pa.large_binary())
    data = pa.py_buffer(array.reshape(-1).view(np.uint8)) if array.size else pa.py_buffer(b"")
    offsets = pa.py_buffer(np.array([0, array.nbytes], dtype=np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
