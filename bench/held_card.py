"""A card that holds a network: random weights drawn where they are to lie, never on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tightfit.adapters import call_of, outline_part
from tightfit.adapters.libraries import class_named, quiet
from tightfit.adapters.parts import Part
from tightfit.card import Card
from tightfit.plan.size import Size
from tightfit.weigh import Held, Kind, identity, walk, weights
from tightfit.weigh.dry import DryRun, dry_run

_SEED = 0
_SPREAD = 0.02


@dataclass(frozen=True)
class Resident:
    """A network of diffusers on a card, and its twin on the meta device.

    Attributes:
        part: what it is.
        dtype: it computes in.
        module: on the card.
        outline: its shapes.
        sizes: bytes of each weight, in the order in which the card was asked for them.
        tables: bytes of the tensors that it keeps as plain attributes; they come with a first call.
    """

    part: Part
    dtype: torch.dtype
    module: nn.Module
    outline: nn.Module
    sizes: tuple[int, ...]
    tables: tuple[int, ...]

    def call(self, stage: str, size: Size) -> Callable[[], object]:
        """One call on the card."""
        return call_of(self.part, self.module, stage, size, dtype=self.dtype)

    def dry(self, stage: str, size: Size) -> DryRun:
        """The same call on the meta device."""
        return dry_run(call_of(self.part, self.outline, stage, size, dtype=self.dtype))


def reside(part: Part, card: Card, *, dtype: torch.dtype) -> Resident:
    """Build `part`, one of diffusers without a file, on `card`.

    Parameters are drawn from a normal distribution, seeded. Buffers have the values that the
    network itself gives them: rotary tables and the like are stored nowhere.
    """
    outline = outline_part(part, dtype=dtype)
    dtypes = {held.path: held.tensor.dtype for held in weights(outline)}
    with quiet(), _parameters_on_meta():
        module: nn.Module = class_named(part.library, part.class_name).from_config(
            copy.deepcopy(dict(part.config))
        )
    module.eval()
    torch.manual_seed(_SEED)
    sizes = []
    copies: dict[Any, torch.Tensor] = {}
    for held in list(weights(module)):
        key = identity(held.tensor)
        if key not in copies:
            copies[key] = _placed(held, dtypes[held.path], card.device)
            sizes.append(copies[key].nbytes)
        of_parameters = held.kind is Kind.PARAMETER
        table: dict[str, Any] = held.owner._parameters if of_parameters else held.owner._buffers
        table[held.name] = copies[key]
    tables = tuple(held.tensor.nbytes for held in walk(outline) if held.kind is Kind.ATTRIBUTE)
    return Resident(part, dtype, module, outline, tuple(sizes), tables)


def _placed(held: Held, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One tensor on `device`, and nothing beside it, not even for a moment."""
    if held.kind is Kind.BUFFER:
        return held.tensor.to(dtype).to(device)
    drawn = torch.empty(held.tensor.shape, dtype=dtype, device=device)
    return nn.Parameter(drawn.normal_(std=_SPREAD), requires_grad=False)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """While inside, modules that are built have no parameters but their shapes."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        plain(module, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]
