"""What a module held when its weights were arranged, and whether that is still so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from tightfit.card.virtual.keeper import DEVICE_TYPE
from tightfit.errors import UsageError
from tightfit.weigh.shells import outer_of
from tightfit.weigh.tensors import Held, Kind, weights

_INSTEAD = "unfit the module, change it, and fit it again"
_version: Callable[[Any], int] = attrgetter("_version")
_wants_grad: Callable[[Any], bool] = attrgetter("requires_grad")


class Inventory:
    """Looks at every call whether weights were exchanged or written to behind our back.

    What a module has got besides, such as a LoRA, is used as it is and has to be on the card. What
    was written in place into a weight through its ``data`` while that is on the card is not seen.
    """

    def __init__(self, module: nn.Module, helds: Iterable[Held], device: torch.device) -> None:
        """At rest: between two calls, with all weights where they are then."""
        self._module = module
        self._device = device
        self._address: Callable[[Any], int] = torch.Tensor.data_ptr
        if device.type == DEVICE_TYPE:
            self._address = _behind
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._held: list[torch.Tensor] = []
        self._outers: set[int] = set()
        self._own: set[int] = set()  # parameters
        managed: dict[int, tuple[torch.Tensor, str]] = {}
        versioned: dict[int, tuple[torch.Tensor, str]] = {}
        for held in helds:
            is_parameter = held.kind is Kind.PARAMETER
            owner, tensor, outer = held.owner, held.tensor, outer_of(held).tensor
            self._outers.add(id(outer))
            self._tables.append(owner._parameters if is_parameter else owner._buffers)
            self._names.append(held.name)
            self._held.append(outer)
            if is_parameter:
                self._own.add(id(outer))
            if id(tensor) not in managed:
                managed[id(tensor)] = (tensor, held.path)
                if is_parameter:  # norms write to their buffers
                    versioned[id(tensor)] = managed[id(tensor)]
        self._managed, self._versioned = list(managed.values()), list(versioned.values())
        self._tensors = [tensor for tensor, _ in self._managed]
        self._addresses = [*map(self._address, self._tensors)]
        self._parameters = [tensor for tensor, _ in self._versioned]
        self._versions = [*map(_version, self._parameters)]
        self._differs = False
        self._look_at_parts()

    @property
    def differs(self) -> bool:
        """Whether parameters came to the module or left it, as those of an adapter do."""
        if not self._differs and self._is_exchanged():
            found = {id(each.tensor) for each in _parameters(self._module)}
            self._differs = self._own != found
        return self._differs

    def newcomers(self) -> list[Held]:
        """The parameters that came."""
        return [held for held in _parameters(self._module) if id(held.tensor) not in self._own]

    def check(self) -> None:
        """Raise `UsageError`, naming it, for a weight that would not be what it was given.

        This is done at every call, for thousands of tensors: no step of Python for any of them.
        """
        with torch._C.DisableTorchFunctionSubclass():
            self._check_values()
        if self._is_exchanged():
            self._differs = self.differs
            self._look_around()
            self._look_at_parts()

    def _check_values(self) -> None:
        addresses = [*map(self._address, self._tensors)]
        if addresses != self._addresses:
            _refuse(self._managed, addresses, self._addresses)
        if any(map(_wants_grad, self._parameters)):  # as an adapter's do, once it is chosen
            for tensor in self._parameters:
                tensor.requires_grad_(False)
        versions = [*map(_version, self._parameters)]
        if versions != self._versions:
            _refuse(self._versioned, versions, self._versions)

    def _is_exchanged(self) -> bool:
        if not all(map(is_, map(dict.get, self._tables, self._names), self._held)):
            return True
        if any(self._empty) or [*map(len, self._filled)] != self._sizes:
            return True
        return [*chain.from_iterable(map(dict.values, self._below))] != self._children

    def _look_at_parts(self) -> None:
        """What all modules within hold, and which those are."""
        parts = list(self._module.modules())
        each: list[dict[str, Any]] = [
            *(part._parameters for part in parts),
            *(part._buffers for part in parts),
            *(part._modules for part in parts),
        ]
        self._empty = [table for table in each if not table]
        self._filled = [table for table in each[: 2 * len(parts)] if table]
        self._below = [table for table in each[2 * len(parts) :] if table]
        self._sizes = [*map(len, self._filled)]
        self._children = [*chain.from_iterable(map(dict.values, self._below))]

    def _look_around(self) -> None:
        managed = {id(tensor) for tensor in self._tensors} | self._outers
        for held in weights(self._module):
            host = held.tensor.device.type == "cpu"
            if host and id(held.tensor) not in managed:
                raise UsageError(
                    f"`{held.path}` came to the module while it is streamed and is on the host: "
                    f"move it to {self._device}, or {_INSTEAD}."
                )


def _parameters(module: nn.Module) -> Iterable[Held]:
    return (held for held in weights(module) if held.kind is Kind.PARAMETER)


def _behind(tensor: Any) -> int:
    """A tensor of a virtual card has no address itself."""
    address: int = tensor.payload.data_ptr()
    return address


def _refuse(
    each: Iterable[tuple[torch.Tensor, str]], now: Iterable[int], before: Iterable[int]
) -> None:
    path = next(path for (_, path), a, b in zip(each, now, before, strict=True) if a != b)
    raise UsageError(
        f"`{path}` was written to while it is streamed, where its values do not stay: {_INSTEAD}."
    )
