"""Values that hold tensors, taken apart into JSON and tensors, and put together again.

A packed value is JSON: plain values stand for themselves, and everything else is an object with
one name that says what it is. A tensor is ``{"tensor": [number, shape, dtype, stride, host]}``,
where `host` tells whether it was there or on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Json = Any
Records = Mapping[str, Callable[..., Any]]
"""Classes of named fields, by name: they are made by calling them with their fields."""

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class Packed:
    """A value taken apart.

    Attributes:
        form: as JSON; alone it is enough for zeros of the same shapes.
        tensors: by their numbers in `form`.
    """

    form: Json
    tensors: tuple[torch.Tensor, ...]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Packed:
        """The same with other tensors for these."""
        return Packed(self.form, tuple(map(change, self.tensors)))


def pack(value: object, name: str, records: Records) -> Packed:
    """`value`, which is called `name`, taken apart; its tensors are the ones that it holds.

    Raises `TypeError`, which says what it is and where, for what cannot be taken apart.
    """
    packer = _Packer(records)
    form = packer.pack(value, name)
    return Packed(form, tuple(packer.tensors))


def unpack(packed: Packed, records: Records, device: torch.device) -> Any:
    """The value; tensors that were not on the host come to `device`.

    Raises `ValueError`, `TypeError` or `LookupError` for what `pack` did not make.
    """
    return _Unpacker(records, device, packed.tensors).unpack(packed.form)


def blank(form: Json, records: Records, device: torch.device) -> Any:
    """A value of that form with zeros in all tensors; it raises what `unpack` does."""
    return _Unpacker(records, device, None).unpack(form)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own."""
    return tensor.detach().to("cpu", copy=True)


class _Packer:
    """Takes one value apart, and remembers the tensors that it found, each once."""

    def __init__(self, records: Records) -> None:
        self._names = {made: name for name, made in records.items()}
        self._numbers: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []

    def pack(self, value: object, path: str) -> Json:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if kind in (list, tuple):
            name = "list" if kind is list else "tuple"
            return {name: [self.pack(v, f"{path}[{at}]") for at, v in enumerate(_each(value))]}
        if kind is dict:
            return {"dict": self._items(value, path)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
            name = "array" if isinstance(value, np.ndarray) else "scalar"
            return {name: self._tensor(torch.from_numpy(np.asarray(value).copy()))}
        if kind in self._names:
            return {"record": [self._names[kind], self._items(value, path)]}
        raise TypeError(f"`{path}` is a {kind.__name__}")

    def _items(self, value: Any, path: str) -> Json:
        return [
            [self.pack(key, path), self.pack(each, f"{path}.{key}")] for key, each in value.items()
        ]

    def _tensor(self, tensor: torch.Tensor) -> Json:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return [
            self._numbers[id(tensor)],
            list(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.stride()),
            tensor.device.type == "cpu",
        ]


class _Unpacker:
    """Puts one value together again; without `tensors` there are zeros instead."""

    def __init__(
        self,
        records: Records,
        device: torch.device,
        tensors: Sequence[torch.Tensor] | None,
    ) -> None:
        self._records = records
        self._device = device
        self._tensors = tensors
        self._made: dict[int, torch.Tensor] = {}

    def unpack(self, packed: Json) -> Any:
        if not isinstance(packed, dict):
            if type(packed) not in _PLAIN:
                raise ValueError(f"{packed!r} is no packed value")
            return packed
        ((kind, inside),) = packed.items()
        if kind == "tensor":
            return self._tensor(inside)
        if kind == "list":
            return [self.unpack(each) for each in inside]
        if kind == "tuple":
            return tuple(self.unpack(each) for each in inside)
        if kind == "dict":
            return self._items(inside)
        if kind == "dtype":
            return _dtype(inside)
        if kind == "array":
            return self._tensor(inside).numpy().copy()
        if kind == "scalar":
            return self._tensor(inside).numpy()[()]
        if kind == "record":
            name, items = inside
            return self._records[name](**self._items(items))
        raise ValueError(f"{kind!r} is no kind of packed value")

    def _items(self, items: Json) -> dict[Any, Any]:
        return {self.unpack(key): self.unpack(each) for key, each in items}

    def _tensor(self, packed: Json) -> torch.Tensor:
        number, shape, dtype, stride, host = packed
        if number not in self._made:
            dense = _is_dense(shape, stride)
            value = torch.empty_strided(
                shape, stride if dense else _rows(shape), dtype=_dtype(dtype)
            )
            if self._tensors is None:
                value.zero_()
            else:
                value.copy_(self._tensors[number])
            self._made[number] = value if host else value.to(self._device)
        return self._made[number]


def _each(value: Any) -> Sequence[Any]:
    found: Sequence[Any] = value
    return found


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill one piece of memory, each once, in whatever order."""
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: pair[1]):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _rows(shape: Sequence[int]) -> list[int]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides
