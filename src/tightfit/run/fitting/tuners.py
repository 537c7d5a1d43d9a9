"""Layers that have adapters, such as PEFT's, in the place of those that they call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.errors import UsageError

_FUSING = ("fuse_lora", "unfuse_lora", "merge", "unmerge")


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

    What fuses is not interrupted half way: Ctrl-C counts when it is done. Where it fails, layers
    that were not fused have the strengths that they had.
    """
    if method not in _FUSING:
        return write()
    before = [(t, dict(t.scaling), list(t.merged_adapters)) for t in Tuners(module).layers.values()]
    try:
        return _uninterrupted(write)
    except Exception:
        for layer, scaling, merged in before:
            if layer.merged_adapters == merged:
                layer.scaling.update(scaling)
        raise


def _uninterrupted(write: Callable[[], Any]) -> Any:
    def work() -> Any:
        with torch.no_grad():
            return write()

    with ThreadPoolExecutor(1) as worker:
        job = worker.submit(work)
        interrupt: KeyboardInterrupt | None = None
        while not job.done():
            try:
                wait([job])
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return job.result()


def _tuners(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, part in module.named_modules():
        if isinstance(getattr(part, "merged_adapters", None), list) and hasattr(part, "merge"):
            yield path, part


def _activity(layer: Any) -> Hashable:
    names = getattr(layer, "_active_adapter", None)
    names = tuple(names) if isinstance(names, list) else names
    return names, getattr(layer, "_disable_adapters", None), bool(layer.merged_adapters)
