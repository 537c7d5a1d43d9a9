"""Hooks of other libraries that move the weights of a module: two who do that undo each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from tightfit.errors import UsageError

_ACCELERATE = {"AlignDevicesHook", "CpuOffload", "LayerwiseCastingHook"}
"""Classes of accelerate that move or convert weights; others of its hooks are let alone."""
_DIFFUSERS = {
    "group_offloading",
    "lazy_prefetch_group_offloading",
    "layer_execution_tracker",
    "layerwise_casting",
}
"""Names under which diffusers keeps hooks that do; caches and guiders have others."""


def refuse_strangers(module: nn.Module) -> None:
    """Raise `UsageError`, with the path and what to call, where somebody else moves weights."""
    name = type(module).__name__
    for path, part in module.named_modules():
        where = f"`{path}` of `{name}`" if path else f"`{name}`"
        for hook in _hooks_of_accelerate(part):
            raise UsageError(
                f"{where} is moved by accelerate's {hook}: call "
                "accelerate.hooks.remove_hook_from_module(module, recurse=True) first (or "
                "`remove_all_hooks()` of its pipeline), and have it on the host."
            )
        for hook in _hooks_of_diffusers(part):
            raise UsageError(
                f"{where} is moved by diffusers' {hook} hook: call "
                f'module._diffusers_hook.remove_hook("{hook}", recurse=True) first, or load the '
                "model again without it."
            )
    spread = getattr(module, "hf_device_map", None)
    if isinstance(spread, dict) and len({str(device) for device in spread.values()}) > 1:
        raise UsageError(
            f"`{name}` is spread over several devices by its `hf_device_map`: call "
            "`reset_device_map()` of its pipeline first, or load the model again without one."
        )


def _hooks_of_accelerate(part: nn.Module) -> Iterator[str]:
    hook: Any = vars(part).get("_hf_hook")
    for each in (hook, *getattr(hook, "hooks", ())):
        names = {kind.__name__ for kind in type(each).__mro__}
        if names & _ACCELERATE:
            yield type(each).__name__


def _hooks_of_diffusers(part: nn.Module) -> Iterator[str]:
    registry: Any = vars(part).get("_diffusers_hook")
    hooks = getattr(registry, "hooks", None)
    return (name for name in hooks if name in _DIFFUSERS) if isinstance(hooks, dict) else iter(())
