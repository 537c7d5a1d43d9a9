"""Models weighed by building them on the meta device: ``random:NAME``, ``mini:NAME``, folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from tightfit.adapters.calls import call_of, passes_of
from tightfit.adapters.parts import Part, find_parts, outline_part, stages_of
from tightfit.adapters.row_names import row_name
from tightfit.adapters.sizes import cast_sizes, padding, usual_size
from tightfit.card.outlook import Outlook
from tightfit.errors import UsageError
from tightfit.plan.size import Size
from tightfit.run.dry_gauge import DryGauge
from tightfit.run.planning.demands import Model
from tightfit.run.planning.gauge import Gauge, NoGauge, TableGauge
from tightfit.run.planning.weighed import Weighed, compute_dtype, in_order
from tightfit.weigh.blocks import Weights
from tightfit.weigh.header_blocks import blocks_of_header
from tightfit.weigh.headers import read_header
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import Order, joined, ordered, run_order
from tightfit.weigh.recognise import recognise
from tightfit.weigh.table import needs_of
from tightfit.weigh.tensor_header import Header
from tightfit.weigh.workspace import CUDA, NONE

_SMALL = 256
_FEW = 5
"""Pixels of a side, and frames, at which the order of blocks is looked at."""


@dataclass(frozen=True)
class PartsSource:
    """The parts that a SPEC names, before they are built."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, spec: str) -> PartsSource:
        """Find them; no weight is read. Raises `UsageError` and `InputError`."""
        return cls(find_parts(spec))

    @property
    def usual(self) -> Size:
        """The size that they are usually asked for."""
        return usual_size(self.parts[0])

    def weigh(self, size: Size, card: Outlook, *, dtype: str | None, steps: int) -> Weighed:
        """Build each on the meta device, weigh it there, and run it at the size of the job."""
        models: list[Model] = []
        notes: list[str] = []
        for part in self.parts:
            models += _models(part, size, card, dtype, steps, notes)
        return Weighed(in_order(models), tuple(dict.fromkeys(notes)), self.usual)


def gauges_of(
    models: Sequence[Model], size: Size, card: Outlook, *, dtype: str | None
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """The same models, each with a dry run of its architecture where that has a name here."""
    gauged: list[Model] = []
    notes: list[str] = []
    for model in models:
        try:
            source = PartsSource.of(f"random:{model.name}")
        except UsageError:
            notes.append(f"no dry run of {model.name}: it is no architecture that can be built")
            gauged.append(model)
            continue
        ran = source.weigh(size, card, dtype=dtype or "bfloat16", steps=1)
        same = [each for each in ran.models if each.stage == model.stage]
        gauged.append(replace(model, gauge=same[0].gauge) if same else model)
        notes += ran.notes
    return tuple(gauged), tuple(dict.fromkeys(notes))


def _models(
    part: Part,
    size: Size,
    card: Outlook,
    dtype: str | None,
    steps: int,
    notes: list[str],
) -> Iterator[Model]:
    """One for each stage of a part that a job goes through."""
    header = read_header(part.path) if part.path is not None else None
    stored = header.dtype if header is not None else None if part.pipeline_class else "F32"
    chosen = dtype or compute_dtype(stored, bf16=card.bf16)
    kind: torch.dtype = getattr(torch, chosen)
    module = outline_part(part, dtype=kind)
    known = recognise(header) if header is not None else None
    name = known.name if known is not None else row_name(part)
    # A pipeline's VAE decodes; one that stands alone is asked about both.
    stages = stages_of(part) if part.pipeline_class is None else stages_of(part)[:1]
    weights = _weights(part, module, header, chosen)
    notes += [f"{part.spec}: {note}" for note in padding(size, cast_sizes(part, size))]
    for stage in stages:
        table = _table(name, stage, chosen)
        call = _caller(part, module, stage, kind)
        ran = DryGauge(call, size, table, CUDA if card.scratch else NONE)
        gauge: Gauge = ran
        if ran.at(size, allocator=card.allocator).dry is None:
            notes.append(f"activations of {part.spec}: {ran.problem}")
            gauge = table
        staying: dict[str, str] = {}
        try:
            order = run_order(module, call(Size(_SMALL, _SMALL, min(size.frames, _FEW))))
            weights = ordered(joined(weights, order), order)
            staying = _staying(weights, order)
        except Exception as error:  # the network's own: then blocks run in the order of their names
            notes.append(f"order of {part.spec}: by names, since {type(error).__name__} was raised")
        yield Model(
            name or part.spec.removeprefix("random:"),
            stage,
            weights,
            gauge,
            calls=steps * passes_of(part) if stage == "denoise" else 1,
            tiles=stage in ("decode", "encode"),
            mapped=True,  # random weights stand for a checkpoint, which is a file
            staying=tuple(staying.items()),
        )


def _staying(weights: Weights, order: Order) -> dict[str, str]:
    """Blocks whose tensors others use, where nothing short of the whole model moves both."""
    homes = {leaf.name: block.name for block in weights.blocks for leaf in block.leaves}
    return {
        homes[use.owner]: f"`{use.user or 'code outside of it'}` uses its `{use.name}`"
        for use in order.across(weights)
        if use.unit == "" and use.owner in homes
    }


def _weights(part: Part, module: nn.Module, header: Header | None, dtype: str) -> Weights:
    """By the header of the files where there are some: that is what moves."""
    if header is not None:
        return blocks_of_header(header, dtype)
    return blocks_of(module, name=part.spec.removeprefix("random:"))


def _table(name: str | None, stage: str, dtype: str) -> Gauge:
    needs = needs_of(name, stage, dtype) if name is not None else None
    return NoGauge() if needs is None else TableGauge(needs)


def _caller(
    part: Part, module: nn.Module, stage: str, dtype: torch.dtype
) -> Callable[[Size], Callable[[], object]]:
    def call(size: Size) -> Callable[[], object]:
        return call_of(part, module, stage, cast_sizes(part, size), dtype=dtype)

    return call
