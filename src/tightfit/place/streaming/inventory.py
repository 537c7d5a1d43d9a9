"""What a module held when its weights were arranged, and whether that is still so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

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
                self._resting.append((tensor, _address(tensor), version, held.path))
        self._parts = _parts(module)

    def check(self) -> None:
        """Raise `UsageError`, naming it, for a weight that would not be what it was given."""
        for tensor, address, version, path in self._resting:
            if _address(tensor) != address or (version is not None and tensor._version != version):
                raise UsageError(
                    f"`{path}` was written to while it is streamed, where its values do not stay: "
                    f"{_INSTEAD}."
                )
        exchanged = any(table.get(name) is not tensor for table, name, tensor in self._places)
        if exchanged or _parts(self._module) != self._parts:
            self._look_around()
            self._parts = _parts(self._module)

    def _look_around(self) -> None:
        for held in weights(self._module):
            host = held.tensor.device.type == "cpu"
            if host and id(held.tensor) not in self._managed:
                raise UsageError(
                    f"`{held.path}` came to the module while it is streamed and is on the host: "
                    f"move it to {self._device}, or {_INSTEAD}."
                )


def _address(tensor: Any) -> int:
    """Where its bytes are; a shell has none itself."""
    address: int = getattr(tensor, "payload", tensor).data_ptr()
    return address


def _parts(module: nn.Module) -> list[int]:
    """Of all modules within, by their ids, with how much each holds."""
    found: list[int] = []
    for part in module.modules():
        found += (id(part), len(part._parameters), len(part._buffers))
    return found
