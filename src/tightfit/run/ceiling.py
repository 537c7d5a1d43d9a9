"""How many elements an operator of a device may give, and how many those of a VAE would.

Above its ceiling a device gives wrong numbers, often zeros, and no error: nobody would notice
before looking at the picture. So what is above it is not tried.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from tightfit.card.virtual.keeper import DEVICE_TYPE, keepers
from tightfit.place import placed
from tightfit.run.ladder import Keepsakes
from tightfit.run.vae import Direction, Vae
from tightfit.weigh.dry import Fused, Onlooker, dry_run

_CEILINGS = {"mps": 2**31 - 1}
"""Kernels of Metal that count in 32 bits are silent about it (pytorch/pytorch#185663)."""


def ceiling_of(device: torch.device) -> int | None:
    """The most elements that an operator on `device` may give; None where there is no limit."""
    if device.type == DEVICE_TYPE:
        card = keepers.get(device.index or 0)
        return None if card is None else card.ceiling()
    return _CEILINGS.get(device.type)


@dataclass
class Outputs:
    """The largest outputs of `vae` in one direction, by the shape of its source; remembered."""

    vae: Vae
    direction: Direction
    _known: dict[tuple[int, ...], int | None] = field(default_factory=dict)

    def largest(self, shape: tuple[int, ...]) -> int | None:
        """Elements of the largest tensor that an operator gives; None where it cannot be told."""
        if shape not in self._known:
            self._known[shape] = self._run(shape)
        return self._known[shape]

    def _run(self, shape: tuple[int, ...]) -> int | None:
        call: Any = self.vae.call(self.direction)
        keepsakes = Keepsakes(self.vae.module, device=torch.device("meta"))
        onlooker = _Largest()
        try:
            with placed(self.vae.module, "meta"):
                source = torch.empty(shape, dtype=self.vae.dtype, device="meta")
                dry_run(lambda: call(source), onlooker=onlooker)
        except Exception:  # whatever it is: if it is not about values, the real run raises it
            return None
        finally:
            with suppress(Exception):  # its own way may fail; by name never does
                self.vae.reset()
            keepsakes.drop()
        return onlooker.most


class _Largest(Onlooker):
    """Remembers the most elements that an operator gave."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if not self.looks_away:
            for made in result if isinstance(result, (list, tuple)) else (result,):
                self._count(made)
        return result

    def see(self, kernel: Fused) -> None:
        """Attention is one kernel, whose scores nobody sees."""
        self._count(kernel.made)

    def _count(self, made: Any) -> None:
        if isinstance(made, torch.Tensor):
            self.most = max(self.most, made.numel())
