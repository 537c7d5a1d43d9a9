"""Models weighed by building them on the meta device: ``random:NAME``, ``mini:NAME``, folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.known.calls import call_of, passes_of
from tightfit.adapters.known.row_names import row_name
from tightfit.adapters.known.sizes import grid_of, usual_size, vae_traits
from tightfit.adapters.parts import (
    DECODE,
    DENOISE,
    Part,
    find_parts,
    full_config,
    outline_part,
    stages_of,
)
from tightfit.card.cuda import convolution_library
from tightfit.card.outlook import Outlook
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import Size
from tightfit.run.dry_gauge import DryGauge, sizes_for_lines
from tightfit.run.planning.gauge import Gauge, NoGauge, TableGauge
from tightfit.run.planning.model import Model, Shape, whole_call
from tightfit.run.planning.steps import ANY, Steps
from tightfit.run.planning.strips import StripsGauge, StripsTold
from tightfit.run.planning.weighed import Weighed, cast_notes, compute_dtype, in_order
from tightfit.run.strips.plans import Asked, strips_of
from tightfit.run.strips.scratch import scratch_of
from tightfit.settings import Settings
from tightfit.weigh import weight_bytes
from tightfit.weigh.blocks import Weights
from tightfit.weigh.calibration import Calibration, Calibrations, Key
from tightfit.weigh.files.header_blocks import blocks_of_header
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.recognise import recognise
from tightfit.weigh.files.tensor_header import Header
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import Order, joined, ordered, run_order
from tightfit.weigh.table import needs_of
from tightfit.weigh.workspace import CUDA, NONE

_SMALL = 256
"""Pixels of a side at which the order of blocks is looked at."""


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

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Their stages, and the sizes that each takes."""
        return tuple(
            Shape(_title(part), stage, steps_of_part(part))
            for part in self.parts
            for stage in self._stages(part)
        )

    def weigh(
        self, size: Size, card: Outlook, *, dtype: str | None, steps: int, encodes: bool = True
    ) -> Weighed:
        """Build each on the meta device, weigh it there, and run it at the size of the job.

        `encodes`: an autoencoder that stands alone is asked about both ways.
        """
        models: list[Model] = []
        notes: list[str] = []
        for part in self.parts:
            stages = [s for s in self._stages(part) if encodes or s != "encode"]
            models += _models(
                part, stages, size=size, card=card, dtype=dtype, steps=steps, notes=notes
            )
        return Weighed(in_order(models), tuple(dict.fromkeys(notes)), self.usual)

    def _stages(self, part: Part) -> tuple[str, ...]:
        """A pipeline's VAE decodes; one that stands alone is asked about both ways."""
        return stages_of(part) if len(self.parts) == 1 else stages_of(part)[:1]


def steps_of_part(part: Part) -> Steps:
    """The sizes that a part takes; any, where its class is not known."""
    try:
        if part.stage == DENOISE:
            grid = grid_of(part)
            return Steps(grid.spatial * grid.patch, grid.temporal, grid.largest)
        if part.stage == DECODE:
            traits = vae_traits(part)
            frames = traits.temporal if traits.axes == 3 else None
            return Steps(traits.spatial, frames, cuts_time=traits.tiles_time)
    except InputError:
        return ANY
    return ANY


def gauges_of(
    models: Sequence[Model], size: Size, card: Outlook
) -> tuple[tuple[Model, ...], tuple[str, ...]]:
    """The same models, each with a dry run of its architecture where that has a name here."""
    gauged: list[Model] = []
    notes: list[str] = []
    for model in models:
        try:
            part = find_parts(f"random:{model.name}")[0]
        except UsageError:
            notes.append(f"no dry run of {model.name}: it is no architecture that can be built")
            gauged.append(model)
            continue
        said: list[str] = []
        module = outline_part(part, dtype=getattr(torch, model.dtype))
        gauge = _gauge(
            part,
            module,
            model.stage,
            size=size,
            card=card,
            dtype=model.dtype,
            name=model.name,
            notes=said,
        )
        notes += said
        strips = _strips(part, module, model.stage, getattr(torch, model.dtype), card)
        gauged.append(replace(model, gauge=gauge, strips=strips))
    return tuple(gauged), tuple(dict.fromkeys(notes))


def _models(
    part: Part,
    stages: Sequence[str],
    *,
    size: Size,
    card: Outlook,
    dtype: str | None,
    steps: int,
    notes: list[str],
) -> Iterator[Model]:
    """One for each stage of a part that a job goes through."""
    header = read_header(part.path) if part.path is not None else None
    chosen = dtype or _compute_dtype(part, header, card)
    known = recognise(header) if header is not None else None
    name = known.name if known is not None else row_name(part)
    title = name or _title(part)
    module, weights = None, None
    try:
        module = outline_part(part, dtype=getattr(torch, chosen))
    except InputError as error:
        if header is None:
            raise
        notes.append(f"no dry run of {title}: {_said(error)}")
    if header is not None:
        weights = blocks_of_header(header, chosen)
        notes += cast_notes(title, header.dtype, chosen, card)
    elif module is not None:
        weights = blocks_of(module, name=title)
    assert weights is not None
    for stage in stages:
        staying: dict[str, str] = {}
        gauge = _table(name, stage, chosen)
        if module is not None:
            gauge = _gauge(
                part, module, stage, size=size, card=card, dtype=chosen, name=name, notes=notes
            )
            small = Size(_SMALL, _SMALL, _few(part, size))
            try:
                call = call_of(part, module, stage, small, dtype=getattr(torch, chosen))
                order = run_order(module, call)
                weights = ordered(joined(weights, order), order)
                staying = _staying(weights, order)
            except Exception as error:  # the network's own: blocks then run in the order of names
                notes.append(f"{title} runs in the order of its names, not seen: {_said(error)}")
        yield Model(
            title,
            stage,
            weights,
            gauge,
            calls=steps * passes_of(part) if stage == DENOISE else 1,
            tiles=part.stage == DECODE,
            mapped=True,  # random weights stand for a checkpoint, which is a file
            staying=tuple(staying.items()),
            dtype=chosen,
            steps=steps_of_part(part),
            strips=None
            if module is None
            else _strips(part, module, stage, getattr(torch, chosen), card),
        )


def _strips(
    part: Part, module: nn.Module, stage: str, dtype: torch.dtype, card: Outlook
) -> StripsGauge | None:
    """How a VAE runs in strips; not on a card that is the host."""
    if part.stage != DECODE or card.kind == "cpu":
        return None

    def told(item: Size) -> StripsTold | None:
        vae = adapt(module)
        traits, decodes = vae.traits, stage == DECODE
        samples = (item.frames, item.height, item.width)[-traits.axes :]
        sizes = traits.latent_sizes(samples) if decodes else samples
        channels = traits.latent_channels if decodes else traits.channels
        shape = (1, channels, *sizes)
        asked = Asked(
            name=stage,
            shape=shape,
            dtype=dtype,
            device=torch.device("meta"),
            scratch=scratch_of("cuda" if card.scratch else card.kind),
            allocator="exact",
        )
        call = vae.decode if decodes else vae.encode
        strips = strips_of(module, call, asked, reset=vae.reset)
        if isinstance(strips, str):
            return None
        return StripsTold(strips.laying, torch.Size(shape).numel() * dtype.itemsize)

    return StripsGauge(told)


def _learnt(part: Part, module: nn.Module, stage: str, dtype: str, card: Outlook) -> Calibration:
    """What jobs on this very card measured; they know VAEs alone."""
    if card.hardware is None or part.stage != DECODE:
        return Calibration()
    name = f"{vae_traits(part).name} {weight_bytes(module)}"
    key = Key(name, stage, dtype, card.hardware, torch.__version__, convolution_library())
    return Calibrations(Settings.from_environ().cache_dir / "calibrations.json").of(key)


def _gauge(
    part: Part,
    module: nn.Module,
    stage: str,
    *,
    size: Size,
    card: Outlook,
    dtype: str,
    name: str | None,
    notes: list[str],
) -> Gauge:
    """A dry run; where it fails, the table."""
    steps = steps_of_part(part)
    table = _table(name, stage, dtype)
    whole = whole_call(stage, steps, size)
    known = _learnt(part, module, stage, dtype, card)
    if known.seen:
        notes.append(f"{stage} with {name or _title(part)}: {known.source} on this card")
    ran = DryGauge(
        _caller(part, module, stage, getattr(torch, dtype)),
        whole,
        None if isinstance(table, NoGauge) else table,
        sizes_for_lines(steps, whole),
        replace(CUDA if card.scratch else NONE, learnt=known.shares),
        known,
    )
    if ran.at(whole, allocator=card.allocator).dry is None:
        told = "are from the table" if isinstance(table, TableGauge) else "are not predicted"
        notes.append(f"activations of {name or _title(part)} {told}: {ran.problem}")
        return table
    return ran


def _title(part: Part) -> str:
    """What users call it, where it is none of the known architectures."""
    kind, _, rest = part.spec.partition(":")
    if kind in ("random", "mini"):
        return rest
    return f"{part.pipeline}/{part.name}" if part.pipeline != part.name else part.name


def _few(part: Part, size: Size) -> int:
    """Two latent frames of a clip."""
    step = steps_of_part(part).frames
    return 1 if step is None or size.frames == 1 else min(size.frames, 1 + step)


def _compute_dtype(part: Part, header: Header | None, card: Outlook) -> str:
    coder = part.stage == DECODE
    if header is None:
        # What pipelines are published in, and autoencoders that stand alone.
        return compute_dtype("BF16" if part.pipeline_class else "F32", card, coder=coder)
    upcast = coder and bool(full_config(part).get("force_upcast", False))
    return compute_dtype(header.dtype, card, coder=coder, upcast=upcast)


def _staying(weights: Weights, order: Order) -> dict[str, str]:
    """Blocks whose tensors others use, where nothing short of the whole model moves both."""
    homes = {leaf.name: block.name for block in weights.blocks for leaf in block.leaves}
    return {
        homes[use.owner]: f"`{use.user or 'code outside of it'}` uses its `{use.name}`"
        for use in order.across(weights)
        if use.unit == "" and use.owner in homes
    }


def _table(name: str | None, stage: str, dtype: str) -> Gauge:
    needs = needs_of(name, stage, dtype) if name is not None else None
    return NoGauge() if needs is None else TableGauge(needs)


def _caller(
    part: Part, module: nn.Module, stage: str, dtype: torch.dtype
) -> Callable[[Size], Callable[[], object]]:
    def call(size: Size) -> Callable[[], object]:
        return call_of(part, module, stage, size, dtype=dtype)

    return call


def _said(error: Exception) -> str:
    """In one line, without a full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:200]
