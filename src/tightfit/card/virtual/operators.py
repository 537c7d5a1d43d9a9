"""What an operator does to memory, found out before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

# The first operator on the meta device imports this, in the frames of whoever called it; import
# machinery keeps those frames, and the tensors in them, until the collector comes by.
import torch._dynamo
from torch._ops import OpOverload

PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
"""Most arguments are of these types, which hold no tensors."""
HALVES = (torch.float16, torch.bfloat16)
_CACHE_LIMIT = 20_000
_MOVES_ONLY = frozenset(
    {
        "aten::_to_copy",
        "aten::clone",
        "aten::cat",
        "aten::stack",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::constant_pad_nd",
        "aten::index_select",
        "aten::gather",
        "aten::repeat",
        "aten::view_copy",
        "aten::flip",
    }
)
_SHAPES_ONLY = frozenset(
    {
        f"aten::{name}"
        for name in (
            "empty_like",
            "full_like",
            "new_empty",
            "new_empty_strided",
            "new_full",
            "new_ones",
            "new_zeros",
            "ones_like",
            "rand_like",
            "randn_like",
            "zeros_like",
        )
    }
)
_TAKES_HOST_TENSORS = frozenset(
    {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}
)


@dataclass(frozen=True)
class Facts:
    """What the schema of an operator tells.

    Attributes:
        operator: its name, such as ``aten.add.Tensor``.
        composite: it is written in terms of other operators and arrives whole only in
            inference mode.
        mutates: it writes into an argument.
        views: every result shares the storage of an argument.
        computes: it does arithmetic, so halves are computed in float32 and rounded.
        mixes: it takes host tensors beside card tensors.
        shapes: it looks at the shapes of its arguments, and not at their values.
        answers: it gives a number rather than a tensor, so the host waits for it.
    """

    operator: str
    composite: bool
    mutates: bool
    views: bool
    computes: bool
    mixes: bool
    shapes: bool
    answers: bool


@dataclass(frozen=True)
class Forecast:
    """The results of an operator: bytes of each new storage, and the dtype of each tensor."""

    storages: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


@cache
def facts_of(func: OpOverload) -> Facts:
    """Read the schema of `func` once."""
    schema = func._schema
    name = schema.name
    returns = schema.returns
    mutates = schema.is_mutable
    views = bool(returns) and all(r.alias_info is not None for r in returns) and not mutates
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        _name_of(func), "CompositeImplicitAutograd"
    )
    return Facts(
        operator=str(func),
        composite=composite,
        mutates=mutates,
        views=views,
        computes=not mutates and not views and name not in _MOVES_ONLY,
        mixes=name in _TAKES_HOST_TENSORS,
        shapes=name in _SHAPES_ONLY,
        answers=bool(returns) and not any("Tensor" in str(r.type) for r in returns),
    )


def _name_of(func: Any) -> str:
    return str(func.name())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts."""
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if type(item) not in PLAIN:
                _gather(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)


def written_by(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that `func` writes into."""
    places, names = _written(func)
    return [args[place] for place in places if place < len(args)] + [
        kwargs[name] for name in names if name in kwargs
    ]


@cache
def _written(func: OpOverload) -> tuple[tuple[int, ...], tuple[str, ...]]:
    written = [
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(place for place, _ in written), tuple(name for _, name in written)


_forecasts: dict[Any, Forecast | None] = {}


def forecast(func: OpOverload, args: Any, kwargs: Any) -> Forecast | None:
    """What `func` will allocate, by running it on the meta device; None if it cannot be told.

    `args` and `kwargs` hold plain host tensors. The answer depends on shapes, strides and dtypes
    alone and is remembered. Operators whose result depends on values (`nonzero`) say None.
    """
    key = (func, _freeze(args), _freeze(kwargs))
    try:
        return _forecasts[key]
    except KeyError:
        pass
    except TypeError:  # an argument that cannot be a key
        return _on_meta(func, args, kwargs)
    if len(_forecasts) >= _CACHE_LIMIT:
        _forecasts.clear()
    answer = _forecasts[key] = _on_meta(func, args, kwargs)
    return answer


def _on_meta(func: OpOverload, args: Any, kwargs: Any) -> Forecast | None:
    shadows: dict[int, torch.Tensor] = {}
    try:
        results = func(*_shadow(args, shadows), **_shadow(kwargs, shadows))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    inputs = {shadow.untyped_storage()._cdata for shadow in shadows.values()}
    storages: dict[int, int] = {}
    dtypes = []
    for tensor in tensors_in(results):
        storage = tensor.untyped_storage()
        dtypes.append(tensor.dtype)
        if storage._cdata not in inputs:
            storages[storage._cdata] = storage.nbytes()
    return Forecast(tuple(storages.values()), tuple(dtypes))


def _shadow(value: Any, shadows: dict[int, torch.Tensor]) -> Any:
    """`value` with its tensors on the meta device; one shadow for each tensor, by its id."""
    if isinstance(value, torch.Tensor):
        known = shadows.get(id(value))
        if known is None:
            known = shadows[id(value)] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
        return known
    if isinstance(value, (list, tuple)):
        return type(value)(_shadow(item, shadows) for item in value)
    if isinstance(value, dict):
        return {name: _shadow(item, shadows) for name, item in value.items()}
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value


def _freeze(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return tuple((name, _freeze(item)) for name, item in value.items())
    return (type(value), value)
