"""Whether a module is still what it was when a call of it was written down."""

from __future__ import annotations

from collections.abc import Hashable

from torch import nn

from tightfit.weigh.tensors import weights

_PLAIN = (bool, int, float, str, type(None))
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def fingerprint(module: nn.Module) -> Hashable:
    """Equal for two moments between which nothing was changed that a call could depend on.

    Its layers, their plain attributes, hooks and functions of their own, and shapes and dtypes of
    weights: not what they hold, nor lists and dicts, where caches are.
    """
    layers = tuple(
        (path, id(layer), type(layer), _plain(layer)) for path, layer in module.named_modules()
    )
    shapes = tuple(
        (held.path, tuple(held.tensor.shape), held.tensor.dtype) for held in weights(module)
    )
    return layers, shapes


def _plain(layer: nn.Module) -> tuple[Hashable, ...]:
    found: list[Hashable] = []
    for name, value in vars(layer).items():
        if name in _HOOKS:
            found.append((name, tuple(map(id, value.values()))))
        elif isinstance(value, _PLAIN):
            found.append((name, value))
        elif callable(value) and not isinstance(value, nn.Module):
            found.append((name, id(value)))
    return tuple(found)
