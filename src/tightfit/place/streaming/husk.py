"""A weight without bytes of its own, which holds others: the same object, said to be on a card."""

from __future__ import annotations

from typing import Any

import torch

from tightfit.errors import UsageError
from tightfit.weigh.shells import shown_on

_swap: Any = torch.utils.swap_tensors


class Husk:
    """A wrapper around tensors that come and go; it says that it is where they are used.

    It holds the very tensors that it held, each of which has a seat of its own.
    """

    def __init__(self, tensor: torch.Tensor, path: str, device: torch.device) -> None:
        """From here on `tensor` says that it is on `device`. Raises `UsageError`."""
        self.tensor = tensor
        self._aside: torch.Tensor | None = None
        aside = shown_on(tensor, device)
        try:
            _swap(tensor, aside)
        except RuntimeError as error:
            raise UsageError(
                f"`{path}` ({type(tensor).__name__}) cannot be streamed while something else holds "
                "it, such as the result of a call with gradients, or a weak reference "
                f"({str(error).rstrip('.')}): let that go first."
            ) from None
        self._aside = aside

    def restore(self) -> None:
        """It is where it was; harmless when repeated."""
        if self._aside is not None:
            _swap(self.tensor, self._aside)
            self._aside = None
