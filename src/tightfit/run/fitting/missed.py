"""Weights that a call uses while they are away, where a dry run could not tell that it would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tightfit.errors import UsageError
from tightfit.weigh.shells import has_wrapper, inner_of
from tightfit.weigh.tensors import Held, weights


@contextmanager
def none_missed(module: nn.Module) -> Iterator[None]:
    """While inside, calls of `module` that would compute with NaN instead of a weight raise.

    Every operator is looked at, which is slow, so it is for the first call of its kind. What is
    compiled cannot be looked into, and is let pass.
    """
    if any(part._compiled_call_impl is not None for part in module.modules() if part is not module):
        yield
        return
    with _Missed(module):
        yield


def refuse_made_of_nothing(newcomers: Iterable[Held]) -> None:
    """Raise `UsageError` for parameters that were made of weights while those were away: NaN."""
    for held in newcomers:
        tensor = held.tensor
        if tensor.is_floating_point() and tensor.itemsize > 1 and bool(tensor.isnan().any()):
            raise UsageError(
                f"`{held.path}` came to the module while it is fitted and is NaN, as what is made "
                "of weights that are away: unfit the module, put that right, and fit it again."
            )


class _Missed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What stands for a weight that is away is one element, seen many times."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = type(module).__name__
        self._paths = {id(held.tensor): held.path for held in inner_of(weights(module))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if has_wrapper(types, leaves):
            return NotImplemented  # what it is made of is looked at
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) in self._paths:
                many = leaf.numel() > 1 and not any(leaf.stride())
                if many and func.overloadpacket.__name__ != "detach":
                    raise UsageError(
                        f"`{self._paths[id(leaf)]}` is used while no module that owns it is "
                        f"called, which could not be told beforehand for this `{self._name}`: "
                        "give it room for all its weights, with mode high."
                    )
        return func(*args, **kwargs)
