"""State dicts of a module whose weights are away: they have the true values all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tightfit.errors import UsageError
from tightfit.place.streaming.seat import Seat
from tightfit.weigh.shells import alike, is_shell

_HOST = torch.device("cpu")


def served(owner: nn.Module, masters: Mapping[int, Seat]) -> tuple[RemovableHandle, ...]:
    """From here on, what `owner` puts into a state dict are masters, found by a tensor's id.

    It raises `UsageError` for a layer that writes packed weights there in a way of its own.
    """
    register: Any = owner.register_state_dict_post_hook
    refuse: Any = owner.register_state_dict_pre_hook
    return register(_serving(masters)), refuse(_refuse_own_way)


def _serving(masters: Mapping[int, Seat]) -> Callable[..., None]:
    """A hook that puts the masters into a state dict, wherever the weights are."""

    def master(tensor: torch.Tensor) -> torch.Tensor:
        seat = masters.get(id(tensor))
        return tensor if seat is None else seat.master

    def serve(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        del metadata
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or prefix + name not in state:
                    continue
                seat = masters.get(id(tensor))
                if is_shell(tensor):
                    state[prefix + name] = alike(tensor, master, device=_HOST)
                elif seat is not None:
                    state[prefix + name] = seat.master

    return serve


def _refuse_own_way(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """What a layer would write of its packed weights by itself is NaN while they are away."""
    del keep_vars
    plain: Any = nn.Module._save_to_state_dict
    own: Any = type(module)._save_to_state_dict
    if own is not plain and any(
        is_shell(each) for each in module._parameters.values() if each is not None
    ):
        raise UsageError(
            f"`{prefix.rstrip('.') or type(module).__name__}` ({type(module).__name__}) writes its "
            "packed weights into a state dict in a way of its own, and they are away while it is "
            "streamed: unfit the module first."
        )
