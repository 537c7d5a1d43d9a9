"""Layers whose weight is larger than anything that the card gives at once: in slices of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.units import format_bytes

_PARTS = 4
"""Slices of one weight that fit into the limit together: the next comes while one is used."""


class Sliced(nn.Module):
    """A linear layer as several of fewer rows each; their weights are views of its own.

    Results are those of the whole but for rounding: another kernel may be chosen for fewer rows.
    """

    def __init__(self, layer: nn.Linear, most: int) -> None:
        """Each slice has at most `most` bytes. Raises `UsageError` where one row has more."""
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        row = layer.weight.nbytes // layer.out_features
        if row > most:
            raise UsageError(
                f"a row of {format_bytes(row)} is above the largest single allocation of the card."
            )
        self.parts = nn.ModuleList()
        rows = max(1, most // row)
        for first in range(0, layer.out_features, rows):
            last = min(first + rows, layer.out_features)
            part = nn.Linear(self.in_features, last - first, bias=False, device="meta")
            part.weight = nn.Parameter(layer.weight.detach()[first:last], requires_grad=False)
            if layer.bias is not None:
                bias = layer.bias.detach()[first:last]
                part.bias = nn.Parameter(bias, requires_grad=False)
            self.parts.append(part.train(layer.training))
        register: Any = self._register_state_dict_hook
        register(_joined)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


@contextmanager
def sliced(module: nn.Module, most: int | None) -> Iterator[list[str]]:
    """While inside, no linear layer of `module` has a weight of more than `most` bytes.

    Gives sentences on those that are in slices. State dicts have the names and values of the whole.
    Raises `UsageError` for other weights that are too large, by their path.
    """
    told: list[str] = []
    before: list[tuple[dict[str, Any], str, nn.Module]] = []
    try:
        for path, layer in list(module.named_modules()) if most is not None else ():
            largest = max(
                (t.nbytes for t in layer._parameters.values() if t is not None), default=0
            )
            assert most is not None
            if largest <= most:
                continue
            limit = format_bytes(most)
            if type(layer) is not nn.Linear or not path:
                raise UsageError(
                    f"`{path or type(module).__name__}` has a weight of {format_bytes(largest)}, "
                    f"and the card gives {limit} at once: only linear layers within a module are "
                    "cut."
                )
            made = Sliced(layer, most // _PARTS)
            above, _, name = path.rpartition(".")
            table = module.get_submodule(above)._modules
            before.append((table, name, layer))
            table[name] = made
            told.append(
                f"`{path}` is computed in {len(made.parts)} slices: its weight of "
                f"{format_bytes(largest)} is above the largest single allocation, {limit}"
            )
        yield told
    finally:
        for table, name, layer in reversed(before):
            table[name] = layer


def _joined(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    del metadata
    sliced: Any = module
    for name in ("weight", "bias"):
        keys = [f"{prefix}parts.{at}.{name}" for at in range(len(sliced.parts))]
        found = [state.pop(key) for key in keys if key in state]
        if found:
            state[f"{prefix}{name}"] = torch.cat(found)
