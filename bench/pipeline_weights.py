"""The weights of a whole pipeline between processes: drawn once, then mapped by each that runs."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters.loading.assembling import assembled
from tightfit.adapters.loading.eight_bits import quantise
from tightfit.adapters.loading.whole import PipelineSource, find_pipeline, stored_dtype
from tightfit.adapters.parts import DECODE, DENOISE, Part, bare_part, load_part
from tightfit.weigh import Kind, identity, weights

_PAGE = 4096


@dataclass(frozen=True)
class Store:
    """Memory that has a file's name and no disk; VAEs are small, and each process draws its own.

    Attributes:
        file: a descriptor of it, which processes inherit.
        list: where the places of the weights are written.
    """

    file: int
    list: Path

    @classmethod
    def open(cls, folder: Path) -> Store:
        """An empty one; its memory goes when every descriptor and mapping of it is gone."""
        return cls(os.memfd_create("pipeline"), folder / "store.json")

    def put(self, spec: str, how: str | None, *, only: str | None = None) -> None:
        """Draw the networks of a pipeline and lay them there, one after another, ties once.

        Or `only` the one of that name, which is then stored as `how` says whatever it is for.
        """
        places: dict[str, dict[str, Any]] = {}
        end = 0
        for part in find_pipeline(spec).parts:
            if part.stage == DECODE or only not in (None, part.name):
                continue
            module = drawn(part, how, alone=only is not None)
            places[part.name], copies, end = _laid_out(module, end)
            os.ftruncate(self.file, end)
            memory = self._memory(end, shared=True)
            for start, tensor in copies:
                _view(memory, start, tensor.dtype, tuple(tensor.shape)).copy_(tensor.detach())
            del module, memory, copies
            gc.collect()
        self.list.write_text(json.dumps({"bytes": end, "places": places}), encoding="utf-8")

    def pipeline(self, source: PipelineSource) -> Any:
        """The pipeline with these weights; they stay mapped, and writing them copies."""
        content = json.loads(self.list.read_text(encoding="utf-8"))
        memory = self._memory(content["bytes"], shared=False)
        return assembled(
            source,
            {
                part.name: load_part(part, dtype=stored_dtype(part)).requires_grad_(False)
                if part.stage == DECODE
                else _filled(part, memory, content["places"][part.name])
                for part in source.parts
            },
        )

    def network(self, part: Part) -> nn.Module:
        """One of them, as in `pipeline`."""
        content = json.loads(self.list.read_text(encoding="utf-8"))
        memory = self._memory(content["bytes"], shared=False)
        return _filled(part, memory, content["places"][part.name])

    def close(self) -> None:
        """This process needs it no more."""
        os.close(self.file)

    def _memory(self, size: int, *, shared: bool) -> torch.Tensor:
        path = f"/proc/self/fd/{self.file}"
        return torch.from_file(path, shared=shared, size=size, dtype=torch.uint8)


def drawn(part: Part, how: str | None, *, alone: bool = False) -> nn.Module:
    """A network with its weights as they are stored; a denoiser's in eight bits, if `how` says so.

    One `alone` is in bfloat16, also a small one, or in eight bits.
    """
    module = load_part(part, dtype=torch.bfloat16 if alone else stored_dtype(part))
    if how == "fp8" and (alone or part.stage == DENOISE):
        quantise(module)
    return module


def _laid_out(
    module: nn.Module, end: int
) -> tuple[dict[str, Any], list[tuple[int, torch.Tensor]], int]:
    starts: dict[Any, int] = {}
    places: dict[str, Any] = {}
    copies: list[tuple[int, torch.Tensor]] = []
    for held in weights(module):
        key = identity(held.tensor)
        if key not in starts:
            starts[key] = end
            copies.append((end, held.tensor))
            end += -(-held.tensor.nbytes // _PAGE) * _PAGE
        dtype = str(held.tensor.dtype).removeprefix("torch.")
        parameter = held.kind is Kind.PARAMETER
        places[held.path] = (starts[key], dtype, tuple(held.tensor.shape), parameter)
    return places, copies, end


def _filled(part: Part, memory: torch.Tensor, places: Mapping[str, Any]) -> nn.Module:
    """Parameters, and the buffers that the class does not make itself: scales."""
    module = bare_part(part, dtype=stored_dtype(part))
    made: dict[int, nn.Parameter] = {}
    for path, (start, name, shape, parameter) in places.items():
        owner, _, own = path.rpartition(".")
        holder = module.get_submodule(owner)
        view = _view(memory, start, getattr(torch, name), tuple(shape))
        if parameter:
            made.setdefault(start, nn.Parameter(view, requires_grad=False))
            holder._parameters[own] = made[start]
        elif own not in holder._buffers:
            holder.register_buffer(own, view)
    return module.eval()


def _view(
    memory: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    size = dtype.itemsize * torch.Size(shape).numel()
    return memory[start : start + size].view(dtype).view(shape)
