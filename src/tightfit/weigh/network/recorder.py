"""Write a call down as a graph, by running it once on the meta device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.weigh.network.graph import Graph, Node, Ref, Value
from tightfit.weigh.shapes import Shapes
from tightfit.weigh.tensors import weights


class UntoldError(Exception):
    """A call that cannot be written down, and why."""


def record(
    module: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], source: torch.Tensor
) -> Graph:
    """What `call` of `source` does with the weights of `module`, which lie on the meta device.

    Norms over groups, layers and vectors, and attention, are one node each. Operators in place
    become those that make something new. Raises `UntoldError` where a run with other values could
    do something else: random numbers, or writing to what is read under another name.
    """
    books = _Books(module, source)
    with torch.no_grad(), _Whole(books), books:
        result = call(source)
    return books.graph(result)


class _Books(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, module: nn.Module, source: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.away = False
        self._shapes = Shapes()
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._numbers: dict[int, int] = {}  # id of a tensor → number
        self._kept: list[torch.Tensor] = []  # so that ids stay theirs
        self._written: dict[int, int] = {}  # memory → the first value that came after a write
        self._anew: dict[int, int] = {}  # storage → memory that it stands for since a write
        self._given = self._note(source)
        for held in weights(module):
            self._note(held.tensor, weight=held.path, constant=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if self.away:
            return func(*args, **kwargs)
        result, flops = self._shapes.call(func, args, kwargs)
        self.note(func, args, kwargs, result, flops=flops)
        return result

    def note(
        self, func: Any, args: Any, kwargs: Any, result: Any, *, flops: int = 0, name: str = ""
    ) -> None:
        """Write down an operator and what it made."""
        if (
            getattr(func, "overloadpacket", None) in _FRESH
        ):  # of what they are given they take nothing but type and place
            value = args[2] if len(args) > 2 else _FRESH[func.overloadpacket]
            kwargs = {"dtype": result.dtype, "device": result.device}
            func, args = torch.ops.aten.full.default, (list(result.shape), value)
        args, kwargs = (
            self._numbered(tuple(args)),
            {k: self._numbered(v) for k, v in kwargs.items()},
        )
        reads = tuple(_refs((args, tuple(kwargs.values()))))
        constant = all(self._values[number].constant for number in reads)
        name = name or func.overloadpacket.__name__
        schema = getattr(func, "_schema", None)
        if schema is not None and torch.Tag.nondeterministic_seeded in func.tags:
            raise UntoldError(f"`{name}` draws random numbers")
        if schema is not None and schema.is_mutable and not constant:
            func, name = _without_writing(func, name), name.removesuffix("_")
            if not isinstance(result, torch.Tensor):
                raise UntoldError(f"`{name}` writes to several tensors")
            self._write(reads[0], result)
            self._numbers.pop(id(result), None)
        makes: list[int | None] = []
        for one in result if isinstance(result, (tuple, list)) else [result]:
            made = isinstance(one, torch.Tensor)
            makes.append(self._note(one, constant=constant) if made else None)
        many = isinstance(result, (tuple, list))
        node = Node(name, func, args, kwargs, reads, tuple(makes), many, constant, flops)
        self._nodes.append(node)

    def graph(self, result: Any) -> Graph:
        """What leads to `result`. Raises `UntoldError` where nothing does."""
        if not isinstance(result, torch.Tensor) or id(result) not in self._numbers:
            raise UntoldError("the result is no tensor that the call made")
        wanted = {self._numbers[id(result)]}
        nodes = []
        for node in reversed(self._nodes):
            in_place = node.constant and any(number in wanted for number in node.reads)
            if in_place or any(number in wanted for number in node.makes):
                nodes.append(node)
                wanted.update(node.reads)
        nodes.reverse()
        makers = {n: at for at, node in enumerate(nodes) for n in node.makes if n is not None}
        result_number = self._numbers[id(result)]
        return Graph(tuple(self._values), tuple(nodes), self._given, result_number, makers)

    def _note(
        self,
        tensor: torch.Tensor,
        *,
        weight: str | None = None,
        constant: bool = False,
    ) -> int:
        known = self._numbers.get(id(tensor))
        if known is not None:
            return known
        number = self._numbers[id(tensor)] = len(self._values)
        self._kept.append(tensor)
        storage = tensor.untyped_storage()._cdata
        storage = self._anew.get(storage, storage)
        value = Value(number, tuple(tensor.shape), tensor.dtype, storage, weight, constant)
        self._values.append(value)
        return number

    def _numbered(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            number = self._numbers.get(id(value))
            if number is None:
                raise UntoldError("it reads a tensor that is no weight, input or result")
            known = self._values[number]
            if number < self._written.get(known.storage, 0):
                raise UntoldError("it reads under another name what was written in place")
            return Ref(number)
        if type(value) in (tuple, list):
            return type(value)([self._numbered(one) for one in value])
        return value

    def _write(self, number: int, result: torch.Tensor) -> None:
        """What shares memory with value `number` must not be read any more; `result` is new."""
        self._written[self._values[number].storage] = len(self._values)
        self._anew[result.untyped_storage()._cdata] = -1 - len(self._values)


_FRESH: dict[Any, int] = {
    torch.ops.aten.new_zeros: 0,
    torch.ops.aten.new_ones: 1,
    torch.ops.aten.new_full: 0,
}
"""Operators that make something of one value, and which."""


def _refs(value: Any) -> list[int]:
    if type(value) is Ref:
        return [value.value]
    if type(value) in (tuple, list):
        return [number for one in value for number in _refs(one)]
    return []


def _without_writing(func: Any, name: str) -> Any:
    """The operator that makes something new instead."""
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overload = None if packet is None else getattr(packet, func._overloadname, None)
    if not name.endswith("_") or overload is None or overload._schema.is_mutable:
        raise UntoldError(f"`{name}` writes to what it is given")
    return overload


class _Whole(TorchFunctionMode):
    """Functions that are one node, though PyTorch makes them of several operators."""

    def __init__(self, books: _Books) -> None:
        super().__init__()
        self._books = books

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        known = FUNCTIONS.get(func)
        if known is None or self._books.away:
            return func(*args, **kwargs)
        name, signature = known
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        source = given[next(iter(given))]
        if name == "batch_norm" and given["training"]:
            return func(*args, **kwargs)
        if not isinstance(source, torch.Tensor) or source.device.type != "meta":
            return func(*args, **kwargs)
        self._books.away = True
        try:
            result, flops = _result(name, source, given)
        finally:
            self._books.away = False
        values = tuple(given.values())
        self._books.note(FUNCTIONS_BY_NAME[name], values, {}, result, flops=flops, name=name)
        return result


def _result(name: str, source: torch.Tensor, given: dict[str, Any]) -> tuple[torch.Tensor, int]:
    if name == "linear":
        weight = given["weight"]
        made = source.new_empty((*source.shape[:-1], weight.shape[0]))
        return made, 2 * made.numel() * weight.shape[1]
    if name != "attention":
        return torch.empty_like(source), 0
    value = given["value"]
    shape = (*source.shape[:-1], value.shape[-1])
    order = sorted(range(source.dim()), key=source.stride, reverse=True)
    made = torch.empty_permuted(shape, order, dtype=source.dtype, device=source.device)
    pairs = made.numel() // max(1, made.shape[-1]) * value.shape[-2]
    return made, 2 * pairs * (source.shape[-1] + value.shape[-1])


def _attention_signature() -> inspect.Signature:
    def attention(  # type: ignore[no-untyped-def]  # the built-in one tells nothing of itself
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
        enable_gqa=False,
    ): ...  # fmt: skip

    return inspect.signature(attention)


def attend(*given: Any) -> torch.Tensor:
    """Attention, its arguments in the order in which they are written down."""
    query, key, value, mask, dropout, causal, scale, shared = given
    return functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=shared
    )


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return functional.linear(input, weight, bias)


FUNCTIONS_BY_NAME: dict[str, Callable[..., torch.Tensor]] = {
    "group_norm": functional.group_norm,
    "layer_norm": functional.layer_norm,
    "rms_norm": functional.rms_norm,
    "normalize": functional.normalize,
    "batch_norm": functional.batch_norm,
    "linear": _linear,
    "attention": attend,
}
FUNCTIONS: dict[Any, tuple[str, inspect.Signature]] = {
    func: (name, inspect.signature(func))
    for name, func in FUNCTIONS_BY_NAME.items()
    if name not in ("attention", "linear")
}
FUNCTIONS[functional.linear] = ("linear", inspect.signature(_linear))
FUNCTIONS[functional.scaled_dot_product_attention] = ("attention", _attention_signature())
