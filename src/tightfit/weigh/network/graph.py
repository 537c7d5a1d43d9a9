"""What a call did: its operators in order, and the tensors between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in the arguments of a `Node`: the number of its `Value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the call.

    Attributes:
        number: its place in `Graph.values`.
        shape, dtype: as the call saw it.
        storage: equal for two values exactly where they share memory.
        weight: its path in the module, such as ``decoder.conv_in.weight``; None for what the call
            made or was given.
        constant: it depends on no input, so that it is the same in every call.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: int
    weight: str | None = None
    constant: bool = False

    @property
    def bytes(self) -> int:
        """Of its elements, each once."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class Node:
    """An operator that ran.

    Attributes:
        name: such as ``convolution`` or ``group_norm``.
        func: what to call; an operator of PyTorch, or a function of several.
        args, kwargs: as it was called, with a `Ref` for every tensor.
        reads: the values among them, in order.
        makes: the values it made; None for what is no tensor.
        many: it made a sequence.
        constant: it depends on no input.
        flops: one multiply-add as two.
    """

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    reads: tuple[int, ...]
    makes: tuple[int | None, ...]
    many: bool = False
    constant: bool = False
    flops: int = 0


@dataclass(frozen=True)
class Graph:
    """A call.

    Attributes:
        values: all tensors, by number.
        nodes: in the order in which they ran; what does not lead to the result is left out.
        given: the number of the input.
        result: the number of the result.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    given: int
    result: int
    makers: Mapping[int, int] = field(default_factory=dict)


_NUMBERS = (int, float, bool)
"""What sizes are made of: such a list has no tensors in it."""


def filled(value: Any, with_: Callable[[int], Any]) -> Any:
    """Arguments of a node, with something in the place of every `Ref`."""
    kind = type(value)
    if kind is Ref:
        return with_(value.value)
    if (kind is tuple or kind is list) and value and type(value[0]) not in _NUMBERS:
        return kind([filled(one, with_) for one in value])
    return value
