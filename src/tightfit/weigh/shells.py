"""Weights that are more than one tensor: what they are made of, and others made like them.

Two sorts are known. A *carrier* has bytes of its own, as any parameter has, and may carry further
tensors in plain attributes: a `GGUFParameter` of diffusers, a `Params4bit` of bitsandbytes with its
``quant_state``. A *wrapper* has none, its class takes over dispatch, and its bytes are in tensors
that it holds: what torchao makes, for one. Either keeps them in its attributes, in containers or
plain objects there, at any depth up to `DEPTH`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from copyreg import _slotnames  # type: ignore[attr-defined]
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

from tightfit.weigh.packed import DEPTH, is_packed
from tightfit.weigh.tensors import Held

_PLAIN = (torch.Tensor, nn.Parameter)
_ABSENT: Any = object()
_PAIRS = "_x2"
"""Torch's ending for dtypes that keep two values in one element."""
_OF_CARDS = ("payload", "charge")
"""What a tensor of a virtual card has besides: it is a plain tensor of that card."""
_ELSEWHERE = {"Int8Params": "its layer takes its scales to somewhere else at its first call"}
"""Classes whose tensors do not stay with them, by name, and why."""


@dataclass(frozen=True, eq=False)
class Inner(Held):
    """A plain tensor that is part of a weight that is more than one.

    Attributes:
        outer: that weight. `tensor` is the same object where it has bytes of its own.
    """

    outer: Held | None = None


def is_shell(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is more, or something else, than a plain tensor of its own bytes."""
    if is_lazy(tensor):
        return False
    return is_packed(tensor) if _is_plain(tensor) else True


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether its class takes over dispatch, so that it has no bytes of its own."""
    own: Any = type(tensor).__torch_dispatch__
    return own is not torch.Tensor.__torch_dispatch__ and not _is_plain(tensor)


def has_wrapper(kinds: Iterable[type], given: Iterable[object]) -> bool:
    """Whether what is `given` to an operator has one, if any of its tensors has such a class.

    It does the operator by others, which onlookers are to see instead.
    """
    own: Any = torch.Tensor.__torch_dispatch__
    if all(getattr(kind, "__torch_dispatch__", own) is own for kind in kinds):
        return False
    tensors = (each for each in given if isinstance(each, torch.Tensor))
    return any(is_wrapper(each) and not isinstance(each, FakeTensor) for each in tensors)


def inner_of(helds: Iterable[Held]) -> Iterator[Held]:
    """`helds`, with what they are made of in place of weights that are known to be more."""
    for held in helds:
        if not is_shell(held.tensor) or why_unknown(held.tensor):
            yield held
            continue
        for below, tensor in _tensors(held.tensor):
            path = f"{held.path}{below}"
            yield Inner(
                path, held.owner, held.name, held.steps, held.kind, tensor, held.place, held
            )


def outer_of(held: Held) -> Held:
    """The weight that it is part of, or itself."""
    return held.outer if isinstance(held, Inner) and held.outer is not None else held


def outers_of(helds: Iterable[Held]) -> Iterator[Held]:
    """Weights that are more than one tensor, of which `helds` are the parts; each object once."""
    seen: set[int] = set()
    for held in helds:
        outer = outer_of(held)
        if isinstance(held, Inner) and id(outer.tensor) not in seen:
            seen.add(id(outer.tensor))
            yield outer


def why_unknown(tensor: torch.Tensor) -> str:
    """Why a shell cannot be taken apart; empty where it can."""
    kind = type(tensor)
    unknown = f"is packed or of a kind of its own ({kind.__name__})"
    names = {base.__name__ for base in kind.__mro__}
    for name, why in _ELSEWHERE.items():
        if name in names:
            return f"is packed, and {why} ({kind.__name__})"
    if getattr(tensor, "bnb_quantized", True) is False:
        return f"is not packed yet, and would be on its way to a card ({kind.__name__})"
    if isinstance(tensor, FakeTensor) or str(tensor.dtype).endswith(_PAIRS):
        return unknown
    if not _is_plain(tensor) and kind.__module__.partition(".")[0] == "torch":
        return unknown  # spread over devices, masked, nested …
    found = [each for _, each in _tensors(tensor)]
    if not found:
        return unknown
    if is_wrapper(tensor):
        shown = getattr(tensor, "__tensor_flatten__", None)
        names_shown = shown()[0] if shown is not None else ()
        kept = {id(value) for _, value in _attributes(tensor)}
        if any(id(getattr(tensor, name)) not in kept for name in names_shown):
            return unknown
    return ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The own bytes of a carrier, without its class; a plain tensor without its history."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data


def alike(
    tensor: torch.Tensor,
    replaced: Callable[[torch.Tensor], torch.Tensor],
    *,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Another of the class and attributes of `tensor`, with others for the tensors it is made of.

    Args:
        tensor: a carrier or a wrapper; objects that it has with tensors within are copies.
        replaced: gives the other, a plain one, for each tensor that has bytes.
        device: what a wrapper says that it is on; None is where its first tensor is.
    """
    memo: dict[int, torch.Tensor] = {}
    return _alike(tensor, replaced, device, memo)


def shown_on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Another wrapper that says it is on `device`, with the very attributes of `tensor`."""
    made = _wrapper(tensor, device)
    for name, value in _attributes(tensor):
        _set(made, name, value)
    return made


def _alike(
    tensor: torch.Tensor,
    replaced: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device | None,
    memo: dict[int, torch.Tensor],
) -> torch.Tensor:
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not is_shell(tensor):
        made = replaced(tensor)
        if isinstance(tensor, nn.Parameter) and not isinstance(made, nn.Parameter):
            made = nn.Parameter(made, requires_grad=False)
        memo[id(tensor)] = made
        return made

    def other(each: torch.Tensor) -> torch.Tensor:
        return _alike(each, replaced, device, memo)

    if not is_wrapper(tensor):
        kind = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
        kind = kind if _is_plain(tensor) else type(tensor)
        made = torch.Tensor._make_subclass(kind, replaced(tensor), False)
        memo[id(tensor)] = made
    values = {name: _copied(value, other, DEPTH) for name, value in _attributes(tensor)}
    if is_wrapper(tensor):
        where = next(_found(values, DEPTH, ""))[1].device if device is None else device
        made = memo[id(tensor)] = _wrapper(tensor, where)
    for name, value in values.items():
        _set(made, name, value)
    return made


def _wrapper(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor._make_wrapper_subclass(
            type(tensor),
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            device=device,
            requires_grad=False,
        )


def _tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The objects whose bytes make up `tensor`, each once, with where it has them."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    _collect(tensor, "", found, set())
    return list(found.values())


def _collect(
    tensor: torch.Tensor,
    path: str,
    found: dict[int, tuple[str, torch.Tensor]],
    seen: set[int],
) -> None:
    if id(tensor) in seen:
        return
    seen.add(id(tensor))
    if not is_wrapper(tensor):
        found[id(tensor)] = (path, tensor)
    if is_shell(tensor):
        for name, value in _attributes(tensor):
            for below, each in _found(value, DEPTH, f"{path}.{name}"):
                _collect(each, below, found, seen)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Of an object: those in its dictionary, and those in slots."""
    ours = isinstance(value, torch.Tensor) and _is_plain(value)
    named = list(vars(value).items()) if hasattr(value, "__dict__") else []
    yield from (each for each in named if not ours or each[0] not in _OF_CARDS)
    for name in () if ours else _slotnames(type(value)):
        held = getattr(value, name, _ABSENT)
        if held is not _ABSENT:
            yield name, held


def _found(value: Any, depth: int, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in containers and plain objects; modules, classes and functions are not entered."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth:
        for name, item in _items(value):
            yield from _found(item, depth - 1, f"{path}{name}")


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{at}]", item) for at, item in enumerate(value)]
    if _is_opaque(value):
        return []
    return [(f".{name}", item) for name, item in _attributes(value)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its class is PyTorch's own, or that of a card."""
    return type(tensor) in _PLAIN or isinstance(getattr(tensor, "payload", None), torch.Tensor)


def _is_opaque(value: Any) -> bool:
    return isinstance(value, (nn.Module, type, Enum)) or callable(value)


def _copied(value: Any, other: Callable[[torch.Tensor], torch.Tensor], depth: int) -> Any:
    """`value` with other tensors; itself where it has none."""
    if isinstance(value, torch.Tensor):
        return other(value)
    if not depth or next(_found(value, depth, ""), None) is None:
        return value
    if isinstance(value, dict):
        items = {key: _copied(item, other, depth - 1) for key, item in value.items()}
        made = copy.copy(value)
        made.update(items)
        return made
    if isinstance(value, (list, tuple)):
        each = [_copied(item, other, depth - 1) for item in value]
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    made = copy.copy(value)
    for name, item in _attributes(value):
        _set(made, name, _copied(item, other, depth - 1))
    return made


def _set(target: Any, name: str, value: Any) -> None:
    """Also where its class is frozen, or has ways of its own."""
    object.__setattr__(target, name, value)
