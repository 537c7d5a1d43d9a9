"""`load_weights`: a checkpoint into a module, in the bytes that it is stored in."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from tightfit.api.fitting import refuse_fitted
from tightfit.errors import UsageError
from tightfit.place.converting.loading import load


def load_weights(module: nn.Module, path: str | Path) -> nn.Module:
    """Give `module` the weights of a safetensors file as they are stored there, fp8 or int8 too.

    For files in which layers are stored in eight bits, as they are shared: ``float8_e4m3fn`` and
    ``float8_e5m2``, alone or with a scale, and ``int8`` with one. A scale is a value for the
    tensor, one for each row, or one for each 128 x 128 values, called ``weight_scale``,
    ``scale_weight`` or ``weight_scale_inv`` beside ``weight``; it becomes a buffer of that name.
    `fit` then moves what is stored, and converts each layer just before it runs. Without `fit`,
    the module cannot be called: nothing multiplies by what is stored.

    Keys have to be those of `module`. Weights are not read, but shown from the file, which has to
    stay as it is; what was packed by `tightfit.pack` is unpacked into memory.

    Args:
        module: on the host or on the meta device, not fitted. Its own values are let go.
        path: a ``.safetensors`` file, the index of shards, or a model's folder.

    Returns:
        `module` itself. Its weights have the dtypes of the file.

    Raises:
        InputError: that names the key, before anything is changed: for a key that is none of the
            module's and no scale by a known name, for a shape or type that does not go with it,
            for what is missing, and for a file that is damaged or of another kind.
        UsageError: for a module that is fitted.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"load_weights takes a torch.nn.Module, and this is a {type(module).__name__}."
        )
    refuse_fitted(module)
    load(module, Path(path))
    return module
