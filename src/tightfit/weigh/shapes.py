"""What an operator makes of meta tensors, remembered: blocks repeat, and a meta kernel is slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

_PLAIN = frozenset((int, str, torch.dtype, torch.device, torch.layout, torch.memory_format))


class _Shape(NamedTuple):
    """A tensor that fills a storage of its own."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """One more of it."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


@dataclass(frozen=True)
class _Made:
    """What a call makes: one tensor, or (`many`) a sequence of them; and its operations."""

    shapes: tuple[_Shape, ...]
    many: Callable[[list[torch.Tensor]], Any] | None
    flops: int


class _UntoldError(Exception):
    """An argument whose shape is not all that counts."""


class Shapes:
    """Calls of operators on meta tensors; of equal ones, only the first runs a kernel.

    Not remembered are operators that write to what they are given or share it, by their schema or
    as seen, and calls with tensors that do not lie on the meta device.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, _Made | None] = {}
        self._pure: dict[Any, bool] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """The result of `func`, and its operations, one multiply-add as two."""
        key = self._key(func, args, kwargs)
        known = None if key is None else self._known.get(key)
        if known is not None:
            new = [shape.make() for shape in known.shapes]
            return (new[0] if known.many is None else known.many(new)), known.flops
        result = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
        if key is not None and key not in self._known:
            given = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
            self._known[key] = _made(result, flops, given=given)
        return result, flops

    def _key(self, func: Any, args: Any, kwargs: Any) -> Hashable | None:
        """What tells the result; None where something else than shapes may."""
        pure = self._pure.get(func)
        if pure is None:
            pure = self._pure[func] = _is_pure(func)
        if not pure:
            return None
        try:
            told = _told(args), tuple((name, _told(value)) for name, value in kwargs.items())
        except _UntoldError:
            return None
        return (func, torch.get_default_dtype(), *told)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in the arguments or results of an operator, which nest in sequences alone."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []


def _is_pure(func: Any) -> bool:
    schema = func._schema
    aliases = any(one.alias_info is not None for one in (*schema.arguments, *schema.returns))
    return not (schema.is_mutable or aliases)


def _told(value: Any) -> Hashable:
    """A value of a call by what the shape of its result can depend on. Raises `_UntoldError`."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if value.device.type != "meta" or value.is_conj() or value.is_neg():
            raise _UntoldError
        return (value.shape, value.stride(), value.dtype)
    if kind is tuple or kind is list or kind is torch.Size:
        return tuple([_told(one) for one in value])
    if kind is bool or kind is float or kind is complex:
        return (kind, value)  # True == 1 == 1.0, and the dtype of a result tells them apart
    if value is None or kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    raise _UntoldError


def _made(result: Any, flops: int, *, given: Sequence[torch.Tensor]) -> _Made | None:
    """None where an equal result cannot be made by its shape alone."""
    many = type(result) if type(result) in (tuple, list) else None
    tensors = [result] if many is None else list(result)
    seen = {tensor.untyped_storage()._cdata for tensor in given}
    shapes = []
    for one in tensors:
        if type(one) is not torch.Tensor or one.device.type != "meta" or one.storage_offset():
            return None
        storage, shape = one.untyped_storage(), _Shape(one.shape, one.stride(), one.dtype)
        if storage._cdata in seen or storage.nbytes() != shape.make().untyped_storage().nbytes():
            return None
        seen.add(storage._cdata)
        shapes.append(shape)
    return _Made(tuple(shapes), many, flops)
