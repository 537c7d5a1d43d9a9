"""Layers that have adapters, such as PEFT's, in the place of those that they call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.weigh.conversions import COMPUTES, is_stored_only
from tightfit.weigh.tensors import Kind, weights

_FUSING = ("fuse_lora", "unfuse_lora", "merge", "unmerge")
_LOADING = ("load_lora_adapter", "add_adapter", "load_adapter")


class Tuners:
    """Those of a module, and what calls must not change of them.

    Attributes:
        layers: by path. They are known by what they keep: PEFT is not imported for it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.layers: dict[str, Any] = dict(_tuners(module))
        self._scalings = [
            each.scaling
            for each in self.layers.values()
            if isinstance(getattr(each, "scaling", None), dict)
        ]

    @property
    def active(self) -> Hashable:
        """Equal while the same adapters are in use in the same layers."""
        return tuple(map(_activity, self.layers.values()))

    @contextmanager
    def same_strengths(self) -> Iterator[None]:
        """While inside, strengths may change; afterwards they are what they were, bit for bit.

        A scale that is given to a call is multiplied into them and divided out again, which rounds.
        """
        before = [dict(each) for each in self._scalings]
        try:
            yield
        finally:
            for now, was in zip(self._scalings, before, strict=True):
                if now != was:
                    now.clear()
                    now.update(was)

    def refuse_fused_unseen(self, before: Tuners) -> None:
        """Raise `UsageError` for adapters in weights of layers that were not there `before`.

        They were written to what is on the card, and are gone with it; so they are unfused again.
        """
        known = set(map(id, before.layers.values()))
        found = {p: t for p, t in self.layers.items() if t.merged_adapters and id(t) not in known}
        for layer in found.values():
            layer.merged_adapters.clear()
        if found:
            raise UsageError(
                f"`{next(iter(found))}` was fused while the module is fitted, in a way that was "
                "not seen, so it was undone: call `fuse_lora` of the module again, or `merge`."
            )


def written(module: nn.Module, method: str, write: Callable[[], Any]) -> Any:
    """The value of `write`, which is `method` of `module`, with its weights on the host.

    What is loaded keeps its values where it is for weights in fp8: PEFT would store it likewise.
    What fuses is not interrupted half way: Ctrl-C counts when it is done. Where it fails, layers
    that were not fused have the strengths that they had.
    """
    if method not in _FUSING:
        with _wide(module) if method in _LOADING else nullcontext():
            return write()
    _refuse_stored(module, method)
    before = [(t, dict(t.scaling), list(t.merged_adapters)) for t in Tuners(module).layers.values()]
    try:
        return _uninterrupted(write)
    except Exception:
        for layer, scaling, merged in before:
            if layer.merged_adapters == merged:
                layer.scaling.update(scaling)
        raise


@contextmanager
def _wide(module: nn.Module) -> Iterator[None]:
    """While inside, NaN of a dtype that computes stands for each weight in fp8.

    An adapter takes the dtype of the weight that it is for.
    """
    found = [held for held in weights(module) if held.kind is Kind.PARAMETER]
    wide = next((each.tensor.dtype for each in found if each.tensor.dtype in COMPUTES), None)
    stored = [held for held in found if is_stored_only(held.tensor)]
    nothing = torch.full((), torch.nan, dtype=wide or torch.bfloat16)
    try:
        for held in stored:
            instead = nn.Parameter(nothing.expand(held.tensor.shape), requires_grad=False)
            held.owner._parameters[held.name] = instead
        yield
    finally:
        for held in stored:
            held.owner._parameters[held.name] = held.tensor  # type: ignore[assignment]
    known = {id(held.tensor) for held in found}
    for held in weights(module) if stored else ():
        if id(held.tensor) not in known and held.tensor.isnan().any():
            raise UsageError(
                f"`{held.path}` is made of a weight that is stored in fp8, which cannot be done: "
                "delete that adapter."
            )


def _refuse_stored(module: nn.Module, method: str) -> None:
    """Nothing can be added to such weights, and their scales are not PEFT's business."""
    for path, layer in Tuners(module).layers.items():
        weight = getattr(layer.get_base_layer(), "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dtype not in COMPUTES:
            raise UsageError(
                f"`{method}` cannot write to `{path}`, whose weight is stored in "
                f"{str(weight.dtype).removeprefix('torch.')}: leave the adapter beside it."
            )


def _uninterrupted(write: Callable[[], Any]) -> Any:
    """What `write` gives; Ctrl-C, which reaches the main thread alone, counts when it is over."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        return write()
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with torch.no_grad():
            value = write()
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
    return value


def _tuners(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, part in module.named_modules():
        if isinstance(getattr(part, "merged_adapters", None), list) and hasattr(part, "merge"):
            yield path, part


def _activity(layer: Any) -> Hashable:
    names = getattr(layer, "_active_adapter", None)
    names = tuple(names) if isinstance(names, list) else names
    return names, getattr(layer, "_disable_adapters", None), bool(layer.merged_adapters)
