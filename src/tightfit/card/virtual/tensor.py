"""Tensors of a virtual card: real values on the host, every storage charged to a card.

A `VirtualTensor` is a shell on device ``vcard:N`` around a host tensor, its payload. Each
operator is forecast on the meta device, charged, run on the payloads, and wrapped again. Halves
are stored and charged as such and computed in float32, since half arithmetic is hundreds of times
slower on most CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from tightfit.card.virtual.attention import attention
from tightfit.card.virtual.keeper import DEVICE_TYPE, Charge, Keeper, charges, keeper_at
from tightfit.card.virtual.operators import (
    HALVES,
    PLAIN,
    Facts,
    Forecast,
    facts_of,
    forecast,
    tensors_in,
    written_by,
)
from tightfit.errors import JobFailed

_aten = torch.ops.aten


class VirtualTensor(torch.Tensor):
    """A tensor on ``vcard:N``; its payload is an ordinary host tensor of the same layout."""

    payload: torch.Tensor
    charge: Charge

    @staticmethod
    def __new__(cls, payload: torch.Tensor, charge: Charge) -> VirtualTensor:
        shell: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            payload.shape,
            strides=payload.stride(),
            storage_offset=payload.storage_offset(),
            dtype=payload.dtype,
            device=torch.device(DEVICE_TYPE, charge.keeper.index),
            requires_grad=False,
        )
        shell.payload = payload
        shell.charge = charge
        return shell

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        return f"VirtualTensor({self.payload!r}, device='{self.device}')"

    def __reduce_ex__(self, proto: Any) -> Any:
        return self.payload.__reduce_ex__(proto)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    def tolist(self) -> Any:
        """As of any tensor; PyTorch refuses it for classes of their own."""
        return self.to("cpu").tolist()

    @property
    def data(self) -> torch.Tensor:
        """The same values without history, as `torch.Tensor.data`."""
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, VirtualTensor):
            raise RuntimeError(
                f"cannot set .data of a tensor on {self.device} to one on {value.device}; "
                "move it first"
            )
        _adopt(self, value.payload, value.charge)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if len(types) > 1 and any(_has_own_ways(kind) for kind in types):
            return NotImplemented  # a wrapper is asked first, as it is among plain tensors
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.nn.functional.scaled_dot_product_attention:
                return attention(func, *args, **kwargs)
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        outcome = _dispatch(func, args, kwargs or {})
        if type(outcome) is _Refusal:
            # The frame that raises must not be one more holder of the arguments, nor of the error:
            # an error whose traceback leads to a frame that holds the error lives until the
            # collector comes by, and so does all that its other frames hold.
            args = kwargs = None
            raise outcome.pop()
        return outcome


def _has_own_ways(kind: Any) -> bool:
    """Whether tensors of that class do functions and operators in ways of their own."""
    if issubclass(kind, VirtualTensor):
        return False
    plain: Any = torch.Tensor
    does = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return (
        does is not plain.__torch_function__.__func__
        and kind.__torch_dispatch__ is not plain.__torch_dispatch__
    )


class _Refusal:
    """An allocation that failed, carried out of the frames that hold tensors."""

    __slots__ = ("_errors",)

    def __init__(self, error: BaseException) -> None:
        self._errors = [error.with_traceback(None)]

    def pop(self) -> BaseException:
        """The error, which is not kept."""
        return self._errors.pop()


def wrap(payload: torch.Tensor, keeper: Keeper, *, operator: str = "to") -> VirtualTensor:
    """Put a host tensor on the card of `keeper`. Its storage is charged once, views share it."""
    storage = payload.untyped_storage()
    known = charges.get(storage._cdata)
    charge = known() if known is not None else None
    if charge is None:
        charge = Charge(keeper, keeper.charge(storage.nbytes(), operator), storage)
    return VirtualTensor(payload, charge)


def fresh(make: Callable[[str], torch.Tensor], keeper: Keeper, *, operator: str) -> VirtualTensor:
    """A new tensor, charged before it is made; `make` is given the device to make it on."""
    shadow = make("meta")
    keeper.computes(shadow.dtype)
    block = keeper.charge(shadow.untyped_storage().nbytes(), operator)
    try:
        payload = make("cpu")
    except BaseException:
        keeper.discharge(block)
        raise
    charge = Charge(keeper, block, payload.untyped_storage())
    if keeper.traffic.on:
        keeper.traffic.allocated(charge)
    return VirtualTensor(payload, charge)


def _dispatch(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    facts = facts_of(func)
    if facts.composite:
        return func.decompose(*args, **kwargs)
    shells, keeper = _locate(func, facts, args, kwargs)
    if facts.views or not keeper.traffic.on:
        return _run(func, facts, shells, keeper, args, kwargs)
    return _watched(func, facts, shells, keeper, args, kwargs)


def _watched(
    func: OpOverload,
    facts: Facts,
    shells: list[VirtualTensor],
    keeper: Keeper,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Told to those who look for missing waits."""
    written = set(map(id, tensors_in(written_by(func, args, kwargs))))
    writes = [shell for shell in shells if id(shell) in written]
    reads = [] if facts.shapes else [shell for shell in shells if id(shell) not in written]
    try:
        step = keeper.traffic.begins(facts.operator, reads, writes)
        outcome = _run(func, facts, shells, keeper, args, kwargs)
        results = tensors_in((outcome, writes))
        keeper.traffic.ends(
            step,
            facts.operator,
            [each for each in results if isinstance(each, VirtualTensor)],
            [each for each in results if not isinstance(each, VirtualTensor)],
        )
    except JobFailed as error:
        return _Refusal(error)
    return outcome


def _run(
    func: OpOverload,
    facts: Facts,
    shells: list[VirtualTensor],
    keeper: Keeper,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    target = kwargs.get("device")
    plain = payloads(args)
    named = {name: payloads(value) for name, value in kwargs.items()}
    if target is not None:
        target = torch.device(target)
        if target.type != DEVICE_TYPE:
            return _to_host(func, keeper, plain, named)
        keeper = keeper_at(target.index)
        named["device"] = torch.device("cpu")
    if facts.mutates:
        return _mutate(func, facts, keeper, shells, args, kwargs, plain, named)
    if facts.views:
        return _wrap_all(func(*plain, **named), shells, keeper, [], facts.operator)
    return _compute(func, facts, keeper, shells, plain, named)


def _locate(
    func: OpOverload, facts: Facts, args: Any, kwargs: dict[str, Any]
) -> tuple[list[VirtualTensor], Keeper]:
    """The card tensors among the arguments and their card; mixed devices are refused."""
    shells: list[VirtualTensor] = []
    host: torch.Tensor | None = None
    for tensor in tensors_in((args, kwargs)):
        if isinstance(tensor, VirtualTensor):
            shells.append(tensor)
        elif tensor.dim() > 0:
            host = tensor
    if host is not None and not facts.mixes:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{host.device} and {shells[0].device} (in {func})"
        )
    keeper = shells[0].charge.keeper
    if not facts.mixes:
        for other in shells:
            if other.charge.keeper is not keeper:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {shells[0].device} and {other.device} (in {func})"
                )
    return shells, keeper


def payloads(value: Any) -> Any:
    if isinstance(value, VirtualTensor):
        return value.payload
    if isinstance(value, (list, tuple)):
        return type(value)([item if type(item) in PLAIN else payloads(item) for item in value])
    return value


def _to_host(func: OpOverload, keeper: Keeper, plain: Any, named: dict[str, Any]) -> Any:
    """Results for another device: copies, never the payload itself."""
    keeper.settle()
    inputs = {t.untyped_storage()._cdata for t in tensors_in((plain, named))}
    result = func(*plain, **named)
    if isinstance(result, torch.Tensor) and result.untyped_storage()._cdata in inputs:
        return result.clone()
    return result


def _mutate(
    func: OpOverload,
    facts: Facts,
    keeper: Keeper,
    shells: list[VirtualTensor],
    args: Any,
    kwargs: dict[str, Any],
    plain: Any,
    named: dict[str, Any],
) -> Any:
    """An operator that writes into its arguments; resized ones are charged anew."""
    if func is _aten.copy_.default and not isinstance(args[0], VirtualTensor):
        keeper.settle()
    result = func(*plain, **named)
    for shell in shells:
        payload = shell.payload
        storage = payload.untyped_storage()
        if storage._cdata != shell.charge.key or storage.nbytes() != shell.charge.size:
            try:
                block = keeper.charge(storage.nbytes(), facts.operator)
            except (RuntimeError, MemoryError) as error:
                return _Refusal(error)
            _adopt(shell, payload, Charge(keeper, block, storage))
        elif payload.shape != shell.shape or payload.stride() != shell.stride():
            _adopt(shell, payload, shell.charge)
    same = {id(payloads(value)): value for value in tensors_in((args, kwargs))}
    try:
        return _replace(result, same, keeper, facts.operator)
    except (RuntimeError, MemoryError) as error:
        result = None
        return _Refusal(error)


def _replace(value: Any, same: dict[int, torch.Tensor], keeper: Keeper, operator: str) -> Any:
    """The arguments that were written into, as they came in; other results are new."""
    if isinstance(value, torch.Tensor):
        known = same.get(id(value))
        return wrap(value, keeper, operator=operator) if known is None else known
    if isinstance(value, (list, tuple)):
        return type(value)(_replace(item, same, keeper, operator) for item in value)
    return value


def _compute(
    func: OpOverload,
    facts: Facts,
    keeper: Keeper,
    shells: list[VirtualTensor],
    plain: Any,
    named: dict[str, Any],
) -> Any:
    """An operator with new results: charged first, computed after."""
    operator = facts.operator
    foreseen = forecast(func, plain, named)
    if facts.answers or foreseen is None:
        keeper.settle()  # the host needs a value, or a size that depends on values
    coming = foreseen or Forecast((), ())
    blocks: list[Any] = []
    workspace = None
    try:
        try:
            for dtype in coming.dtypes:
                keeper.computes(dtype)
            for size in coming.storages:
                blocks.append(keeper.charge(size, operator))
            other_bits = False
            if facts.computes:
                given = sum(shell.charge.size for shell in shells)
                workspace, other_bits = keeper.workspace(operator, given)
        except (RuntimeError, MemoryError) as error:
            return _Refusal(error)
        result = _values(func, facts, plain, named, coming.dtypes)
        ceiling = keeper.ceiling()
        for tensor in tensors_in(result):
            if other_bits and tensor.is_floating_point():
                tensor.mul_(1 + 2**-12)
            if ceiling is not None and tensor.numel() > ceiling:
                tensor.zero_()
        try:
            return _wrap_all(result, shells, keeper, blocks, operator)
        except (RuntimeError, MemoryError) as error:  # what no forecast foresaw is charged here
            result = None
            return _Refusal(error)
    finally:
        if workspace is not None:
            keeper.discharge(workspace)
        for block in blocks:  # foreseen, and not needed
            keeper.discharge(block)


def _values(
    func: OpOverload,
    facts: Facts,
    plain: Any,
    named: dict[str, Any],
    dtypes: tuple[torch.dtype, ...],
) -> Any:
    """Run on the host; halves are computed in float32 and rounded to the forecast dtypes."""
    halves = (
        facts.computes
        and dtypes
        and any(tensor.dtype in HALVES for tensor in tensors_in((plain, named)))
    )
    if not halves:
        return func(*plain, **named)
    result = func(*_widen(plain), **{name: _widen(value) for name, value in named.items()})
    order = iter(dtypes)
    return _narrow(result, order.__next__)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALVES else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widen, value))
    return value


def _narrow(value: Any, dtype_of_next: Callable[[], torch.dtype]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype_of_next())
    if isinstance(value, (list, tuple)):
        return type(value)(_narrow(item, dtype_of_next) for item in value)
    return value


def _wrap_all(
    value: Any, shells: list[VirtualTensor], keeper: Keeper, blocks: list[Any], operator: str
) -> Any:
    """Wrap every tensor of a result; blocks charged in advance are used up first."""
    if isinstance(value, torch.Tensor):
        for shell in shells:
            if shell.payload is value:
                return shell
        storage = value.untyped_storage()
        known = charges.get(storage._cdata)
        if known is None and blocks:
            # The forecast listed the storages in the order of the results.
            return VirtualTensor(value, Charge(keeper, blocks.pop(0), storage))
        return wrap(value, keeper, operator=operator)
    if isinstance(value, (list, tuple)):
        kind = type(value)
        return kind(_wrap_all(item, shells, keeper, blocks, operator) for item in value)
    return value


def _adopt(shell: VirtualTensor, payload: torch.Tensor, charge: Charge) -> None:
    """Make `shell` stand for another payload: its layout follows, its identity stays.

    It is no inference tensor afterwards, whatever the mode; no plain tensor would be one.
    """
    with torch.inference_mode(False):
        fresh = VirtualTensor(payload, charge)
    torch.Tensor.data.__set__(shell, fresh)  # type: ignore[attr-defined]
    shell.payload = payload
    shell.charge = charge
