"""What a module held when its weights were arranged, and whether that is still so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tightfit.card.virtual.keeper import DEVICE_TYPE
from tightfit.errors import UsageError
from tightfit.weigh.tensors import Held, Kind, weights

_INSTEAD = "unfit the module, change it, and fit it again"


class Inventory:
    """Looks at every call whether weights were exchanged or written to behind our back.

    What a module has got besides, such as a LoRA, is used as it is and has to be on the card. What
    was written in place into a weight through its ``data`` while that is on the card is not seen.
    """

    def __init__(self, module: nn.Module, helds: Iterable[Held], device: torch.device) -> None:
        """At rest: between two calls, with all weights where they are then."""
        self._module = module
        self._device = device
        self._address = torch.Tensor.data_ptr if device.type != DEVICE_TYPE else _behind
        self._managed: dict[int, torch.Tensor] = {}
        self._places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._resting: list[tuple[torch.Tensor, int, int | None, str]] = []
        for held in helds:
            is_parameter = held.kind is Kind.PARAMETER
            owner, tensor = held.owner, held.tensor
            table: dict[str, Any] = owner._parameters if is_parameter else owner._buffers
            self._places.append((table, held.name, tensor))
            if id(tensor) not in self._managed:
                self._managed[id(tensor)] = tensor
                version = tensor._version if is_parameter else None  # norms write to their buffers
                self._resting.append((tensor, self._address(tensor), version, held.path))
        self._parts = _parts(module)

    def check(self) -> None:
        """Raise `UsageError`, naming it, for a weight that would not be what it was given."""
        address_of = self._address
        for tensor, address, version, path in self._resting:
            if address_of(tensor) != address or (
                version is not None and tensor._version != version
            ):
                raise UsageError(
                    f"`{path}` was written to while it is streamed, where its values do not stay: "
                    f"{_INSTEAD}."
                )
        if self._is_exchanged():
            self._look_around()
            self._parts = _parts(self._module)

    def _is_exchanged(self) -> bool:
        for table, name, tensor in self._places:
            if table.get(name) is not tensor:
                return True
        for part, children, sizes in self._parts:
            if (len(part._parameters), len(part._buffers), len(part._modules)) != sizes:
                return True
            if children and [*part._modules.values()] != children:
                return True
        return False

    def _look_around(self) -> None:
        for held in weights(self._module):
            host = held.tensor.device.type == "cpu"
            if host and id(held.tensor) not in self._managed:
                raise UsageError(
                    f"`{held.path}` came to the module while it is streamed and is on the host: "
                    f"move it to {self._device}, or {_INSTEAD}."
                )


def _behind(tensor: Any) -> int:
    """A tensor of a virtual card has no address itself."""
    address: int = tensor.payload.data_ptr()
    return address


def _parts(
    module: nn.Module,
) -> list[tuple[nn.Module, list[nn.Module | None], tuple[int, int, int]]]:
    """All modules within, with their children and how much each holds."""
    return [
        (
            part,
            [*part._modules.values()],
            (len(part._parameters), len(part._buffers), len(part._modules)),
        )
        for part in module.modules()
    ]
