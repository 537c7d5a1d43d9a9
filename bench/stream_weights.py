"""Weights between processes: drawn on the card once, then mapped from memory by each that runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.weigh import Held, Kind, identity, walk, weights

_PAGE = 4096


@dataclass(frozen=True)
class Shelf:
    """Memory that has a file's name and no disk, so that its pages are those of the page cache.

    Attributes:
        file: a descriptor of it, which processes inherit.
        list: where the places of the weights are written.
    """

    file: int
    list: Path

    @classmethod
    def open(cls, folder: Path) -> Shelf:
        """An empty one; its memory goes when every descriptor and mapping of it is gone."""
        return cls(os.memfd_create("weights"), folder / "shelf.json")

    def put(self, module: nn.Module) -> None:
        """Take copies of the weights of `module`, ties once."""
        starts: dict[Any, int] = {}
        places, copies, end = {}, [], 0
        for held in weights(module):
            key = identity(held.tensor)
            if key not in starts:
                starts[key] = end
                copies.append((end, held.tensor))
                end += -(-held.tensor.nbytes // _PAGE) * _PAGE
            dtype = str(held.tensor.dtype).removeprefix("torch.")
            places[held.path] = (starts[key], dtype, tuple(held.tensor.shape))
        os.ftruncate(self.file, end)
        memory = self._memory(end, shared=True)
        memory.zero_()  # by all cores; a copy from the card would take the pages one by one
        for start, tensor in copies:
            _view(memory, start, tensor.dtype, tuple(tensor.shape)).copy_(tensor.detach())
        self.list.write_text(json.dumps({"bytes": end, "places": places}), encoding="utf-8")

    def fill(self, outline: nn.Module) -> nn.Module:
        """Give a network of shapes its weights; they stay mapped, and writing them copies.

        Raises `RuntimeError` for a network that keeps tables where no shelf holds them.
        """
        content = json.loads(self.list.read_text(encoding="utf-8"))
        memory = self._memory(content["bytes"], shared=False)
        if any(held.kind is Kind.ATTRIBUTE for held in walk(outline)):
            raise RuntimeError(f"`{type(outline).__name__}` keeps tables in plain attributes")

        def mapped(held: Held) -> tuple[object, torch.Tensor]:
            start, name, shape = content["places"][held.path]
            return start, _view(memory, start, getattr(torch, name), tuple(shape))

        _replaced(outline, mapped)
        return outline

    def close(self) -> None:
        """This process needs it no more."""
        os.close(self.file)

    def _memory(self, size: int, *, shared: bool) -> torch.Tensor:
        path = f"/proc/self/fd/{self.file}"
        return torch.from_file(path, shared=shared, size=size, dtype=torch.uint8)


def bring_home(module: nn.Module) -> None:
    """The weights of `module` come to the host one by one, and leave the card."""

    def brought(held: Held) -> tuple[object, torch.Tensor]:
        there = held.tensor.detach()
        here = torch.empty(there.shape, dtype=there.dtype).zero_()  # see `Shelf.put`
        return identity(held.tensor), here.copy_(there)

    _replaced(module, brought)


def _replaced(module: nn.Module, by: Callable[[Held], tuple[object, torch.Tensor]]) -> None:
    """Each weight by the second of what it gives; the first is the same for ties."""
    made: dict[object, torch.Tensor] = {}
    for held in list(weights(module)):
        of_parameters = held.kind is Kind.PARAMETER
        table: dict[str, Any] = held.owner._parameters if of_parameters else held.owner._buffers
        key, tensor = by(held)
        if key not in made:
            made[key] = nn.Parameter(tensor, requires_grad=False) if of_parameters else tensor
        table[held.name] = made[key]


def _view(
    memory: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    size = dtype.itemsize * torch.Size(shape).numel()
    return memory[start : start + size].view(dtype).view(shape)
