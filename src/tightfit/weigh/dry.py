"""What a call will need, found by running it on the meta device: shapes without values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

# The first operator on the meta device imports this, in the frames of whoever called it; import
# machinery keeps those frames, and the tensors in them, until the collector comes by.
import torch._dynamo
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def dry_peak(call: Callable[[], object]) -> int:
    """The most bytes of new tensors that live at once while `call` runs on meta tensors.

    What exists before (weights, inputs) does not count; the result does. Attention is taken as
    the fused kernel that real cards run. Scratch inside an operator is invisible here.
    """
    books = _LiveBytes()
    with torch.no_grad(), _FusedAttention(), books:
        result = call()
    del result
    return books.peak


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages on the meta device from their first appearance to their end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}  # by address, which is used again; 0 for given ones

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf, given=True)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf, given=False)
        return result

    def _count(self, tensor: torch.Tensor, *, given: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or tensor.device.type != "meta":
            return
        size = self._sizes[key] = 0 if given else storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


class _FusedAttention(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            query = kwargs.get("query", args[0] if args else None)
            value = kwargs.get("value", args[2] if len(args) > 2 else None)
            if query is not None and value is not None and query.device.type == "meta":
                return query.new_empty((*query.shape[:-1], value.shape[-1]))
        return func(*args, **kwargs)
