"""What a weight is while it is not on the card: one NaN that looks as large as the weight."""

from __future__ import annotations

import torch


class Placeholders:
    """Tensors of any shape and dtype that take one element of each dtype on the card.

    Reading one gives NaN (of integers the least value, of booleans True); writing in place into
    one of more than one element raises.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._elements: dict[torch.dtype, torch.Tensor] = {}
        self._made: dict[tuple[torch.dtype, torch.Size], torch.Tensor] = {}

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """One of this shape and dtype; the same each time."""
        return self.of(tensor.dtype, tensor.shape)

    def of(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        """As `like` for a tensor of that dtype and shape."""
        key = (dtype, shape)
        if key not in self._made:
            if dtype not in self._elements:
                self._elements[dtype] = _element(dtype).to(self._device)
            self._made[key] = self._elements[dtype].expand(shape)
        return self._made[key]

    def clear(self) -> None:
        """Let go all that were made."""
        self._made.clear()
        self._elements.clear()


def _element(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor(True)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.tensor(float("nan")).to(dtype)
    return torch.tensor(torch.iinfo(dtype).min, dtype=dtype)
