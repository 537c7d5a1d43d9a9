"""A whole module on a device, and back off it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.weigh import Kind, identity, weights


@contextmanager
def placed(
    module: nn.Module, device: torch.device | str, *, dtype: torch.dtype | None = None
) -> Iterator[None]:
    """While inside, the weights of `module` are copies on `device`; ties stay ties.

    With `dtype`, those of floating point are copies in it.

    The masters on the host are set aside untouched and put back on the way out, whatever
    happened: nothing is ever copied back. Raises what the device raises when it is full; then
    the module is as it was.
    """
    masters: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    copies: dict[Any, torch.Tensor] = {}
    try:
        with torch.no_grad():
            for held in list(weights(module)):
                key = identity(held.tensor)
                copy = copies.get(key)
                if copy is None:
                    copy = copies[key] = _copy(held.tensor, device, dtype)
                table: dict[str, Any] = (
                    held.owner._parameters if held.kind is Kind.PARAMETER else held.owner._buffers
                )
                masters.append((table, held.name, held.tensor))
                table[held.name] = copy
        yield
    finally:
        for table, name, master in masters:
            table[name] = master
        masters.clear()
        copies.clear()


def _copy(
    tensor: torch.Tensor, device: torch.device | str, dtype: torch.dtype | None
) -> torch.Tensor:
    moved = tensor.detach()
    cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    # On the host, wherever it goes: a cast on the card would take room for both.
    moved = moved.to(cast).to(device) if moved.device.type == "cpu" else moved.to(device).to(cast)
    if identity(moved) == identity(tensor):
        return tensor  # it is there already
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved
