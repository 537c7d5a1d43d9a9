"""What has come to a module while its weights were streamed, brought to the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tightfit.weigh.tensors import weights


def bring_home(module: nn.Module, device: torch.device) -> None:
    """Parameters and buffers of `module` that are on `device` are on the host afterwards.

    For a module that is not streamed any more, whose own weights are there already.
    """
    owners: dict[int, Any] = {
        id(held.owner): held.owner for held in weights(module) if held.tensor.device == device
    }

    def home(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if tensor.device == device else tensor

    with torch.inference_mode(False):
        for owner in owners.values():
            owner._apply(home, recurse=False)
