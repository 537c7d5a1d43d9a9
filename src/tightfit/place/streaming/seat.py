"""One tensor of a module: the same object throughout, whatever it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.weigh.shells import plain

_swap: Any = torch.utils.swap_tensors


class Seat:
    """A Parameter or buffer whose bytes can be somewhere else from one moment to the next.

    Attributes:
        tensor: the object that the module holds.
        converts: in calls, the tensor shows a copy of what is stored, in another dtype.
        stored: then, what it is converted from; None between calls.
        shown: the tensor shows its values on the host, though it is away.
    """

    __slots__ = (
        "_aside",
        "_like",
        "_master",
        "_path",
        "_shell",
        "_unpack",
        "_wanted_grad",
        "converts",
        "shown",
        "stored",
        "tensor",
    )

    def __init__(self, tensor: torch.Tensor, path: str) -> None:
        self.tensor = tensor
        self._master: torch.Tensor | None = plain(tensor)
        self._like: torch.Tensor = self._master
        self._unpack: Callable[[], torch.Tensor] | None = None
        self.converts = False
        self.shown = False
        self.stored: torch.Tensor | None = None
        self._path = path
        self._aside: torch.Tensor | None = None  # of another kind: holds what is the object's own
        self._shell: torch.Tensor | None = None  # while shown: holds what it was on the card
        self._wanted_grad = tensor.requires_grad
        tensor.requires_grad_(False)

    @property
    def master(self) -> torch.Tensor:
        """Its values on the host; unpacked for this once where they are kept packed alone."""
        if self._master is not None:
            return self._master
        assert self._unpack is not None
        return self._unpack()

    @property
    def like(self) -> torch.Tensor:
        """Of the shape, strides and dtype of the master, perhaps without values.

        Equal in `identity` for seats whose masters are the same bytes.
        """
        return self._like

    def pack_away(self, like: torch.Tensor, unpack: Callable[[], torch.Tensor]) -> None:
        """Let the master go: from here on `unpack` gives its values, and `like` stands for it.

        The tensor itself shows something else already.
        """
        self._like, self._unpack, self._master = like, unpack, None
        if self._aside is not None:
            self._aside.data = torch.empty(0, dtype=self._aside.dtype)

    def settle(self, master: torch.Tensor) -> None:
        """Take another master, with the same values."""
        self._master = self._like = master
        self._unpack = None
        if self._aside is None:
            self.tensor.data = master
        else:
            self._aside.data = master

    def bring(self, view: torch.Tensor) -> None:
        """Stand for `view`, on another device than so far. Raises `UsageError`."""
        self.shown = False
        if self._shell is not None:  # and its count of writes
            _swap(self.tensor, self._shell)
            self._aside, self._shell = self._shell, None
        same: Any = torch._has_compatible_shallow_copy_type
        if same(self.tensor, view):
            self.tensor.data = view
            return
        if type(self.tensor) not in (torch.Tensor, nn.Parameter, type(view)):
            raise UsageError(
                f"`{self._path}` is a {type(self.tensor).__name__}, which a tensor of this card "
                "cannot be: it can be streamed to a real card, and not to a virtual one."
            )
        shell = view.detach()
        if isinstance(self.tensor, nn.Parameter):
            shell = nn.Parameter(shell, requires_grad=False)
        vars(shell).update(vars(self.tensor))
        try:
            _swap(self.tensor, shell)
        except RuntimeError as error:
            raise UsageError(
                f"`{self._path}` cannot be streamed on this card: {str(error).rstrip('.')}."
            ) from None
        self._aside = shell

    def show(self) -> None:
        """Stand for the values on the host until the next `bring`."""
        if self._aside is not None:
            self._shell = self._aside
        self._stand_for(self.master)
        self.shown = True

    def restore(self) -> None:
        """Stand for the master again, as at first; harmless when repeated."""
        self._master = self._like = master = self.master
        self._unpack = None
        self._stand_for(master)
        self._shell = None
        self.tensor.requires_grad_(self._wanted_grad)

    def _stand_for(self, master: torch.Tensor) -> None:
        if self._aside is not None:
            _swap(self.tensor, self._aside)
            self._aside = None
        if self.tensor.data_ptr() != master.data_ptr() or self.tensor.device.type != "cpu":
            self.tensor.data = master
