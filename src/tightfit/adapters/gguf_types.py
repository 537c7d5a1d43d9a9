"""Weights of GGUF files in modules that diffusers has loaded: which of them it can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tightfit.errors import UsageError
from tightfit.weigh.tensors import weights

_HOME = "diffusers.quantizers.gguf.utils"


def refuse_unreadable(module: nn.Module) -> None:
    """Raise `UsageError`, by its path, for a weight of a block type that diffusers cannot unpack.

    The layer that has it would raise a bare key at its first call, when all is in place.
    """
    for held in weights(module):
        kind = getattr(held.tensor, "quant_type", None)
        if kind is None or type(held.tensor).__module__ != _HOME:
            continue
        known = _known()
        if kind not in known:
            names = ", ".join(sorted(getattr(each, "name", str(each)) for each in known))
            raise UsageError(
                f"`{held.path}` is stored as GGUF's {getattr(kind, 'name', kind)}, which diffusers "
                f"cannot unpack: it can {names}. Take a file without such weights."
            )


def _known() -> Mapping[Any, Any]:
    """Imported already where there is such a weight; its import needs the gguf package."""
    from diffusers.quantizers.gguf.utils import dequantize_functions

    found: Mapping[Any, Any] = dequantize_functions
    return found
