"""One network of a pipeline by itself, stored in few bytes and used in float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pipeline_jobs import GROUP, OURS, RESIDENT, Job
from pipeline_peers import HOST_MARGIN, leaf_by_leaf
from pipeline_place import LONG, Highest, Place, Whole, digest_of
from pipeline_rows import PipelineRow, bound_of
from pipeline_weights import drawn
from torch import nn

import tightfit
from tightfit.adapters import call_of
from tightfit.adapters.loading.eight_bits import SCALE
from tightfit.adapters.loading.whole import PipelineSource, find_pipeline
from tightfit.adapters.parts import Part
from tightfit.card import Card
from tightfit.card.host_memory import read_host_memory
from tightfit.units import format_bytes
from tightfit.weigh import weight_bytes, weights

_WIDE = torch.float32


def whole_part(place: Place, job: Job, source: PipelineSource) -> nn.Module:
    """The network that `job` is about, on the host."""
    part = _part(job, source)
    if place.store is not None:
        return place.store.network(part)
    return drawn(part, job.model.weights, alone=True).requires_grad_(False)


def measured_part(
    place: Place,
    job: Job,
    who: str,
    *,
    card: Card,
    pipe: Any,
    row: PipelineRow,
    deadline: float,
) -> PipelineRow:
    """Call `pipe`, which is the network, in float32. Raises what goes wrong."""
    module: nn.Module = pipe
    card.trim()
    highest = Highest(card)
    stored = weight_bytes(module)
    start = time.perf_counter()
    how = _set_up(who, module, card, job)
    card.sync()
    row = replace(row, setup_seconds=time.perf_counter() - start)
    part = _part(job, find_pipeline(f"random:{job.model.spec}"))
    call = call_of(part, module, part.stage, job.model.size, dtype=_WIDE)
    first, result = _timed(call, card)
    row = replace(row, first_seconds=first, digest=digest_of(result))
    words = ["random weights", f"{format_bytes(stored)} stored", how]
    del result
    seconds, held = first, card.read().allocated or 0
    copied = _copied(module) if who == OURS else 0
    if first <= LONG and time.monotonic() + first < deadline:
        if who == RESIDENT:
            card.reset_peaks()
        seconds = _timed(call, card)[0]
    else:
        copied = 0
        words.append("the first call counts")
    after = card.read()
    row = replace(
        row,
        seconds=seconds,
        all_seconds=(seconds,),
        peak_reserved_bytes=highest.reserved,
        peak_allocated_bytes=highest.allocated,
    )
    if who == RESIDENT:
        activations = max(0, (after.peak_allocated or 0) - held)
        place.keep(Whole(seconds, seconds, activations, 1.0))
        words.append(f"{format_bytes(activations)} beside weights")
        return replace(row, step_seconds=seconds, activations_bytes=activations).said(*words)
    whole = place.whole()
    if whole is not None and row.link_rate:
        room = max(0, job.bytes - whole.activations)
        bound = bound_of(step=whole.step, weights=stored, room=room, rate=row.link_rate, passes=1.0)
        limit = max(whole.seconds, max(0, stored - room) / row.link_rate)
        row = replace(row, bound=bound, limit_seconds=limit)
        words.append(bound)
    if who == OURS:
        row = replace(row, copied_bytes=_copied(module) - copied)
        plan = tightfit.fitted(module).plan
        residency = None if plan is None else plan.stages[0].residency
        if residency is not None:
            words.append(f"{format_bytes(residency.conversion)} for layers in float32")
    return row.said(*words)


def on_card(module: nn.Module, device: torch.device) -> None:
    """All of it in float32 on `device`, layer by layer: nothing else ever has it."""

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.to(device)
        return there.to(_WIDE) if there.is_floating_point() else there

    each: Any
    for each in module.modules():
        scale = each._buffers.pop(SCALE, None)
        each._apply(wide, recurse=False)
        if scale is not None:
            each.weight.data.mul_(wide(scale))


def _set_up(who: str, module: nn.Module, card: Card, job: Job) -> str:
    if who == OURS:
        tightfit.fit(module, vram=job.bytes, card=card, compute="float32")
        return ""
    if who != GROUP:
        on_card(module, card.device)
        return ""
    wide = sum(held.tensor.numel() for held in weights(module)) * _WIDE.itemsize
    there = read_host_memory().available - 2 * HOST_MARGIN  # layers are pinned beside it
    if wide > there:
        raise RuntimeError(
            f"in float32 it takes {format_bytes(wide)} of host memory, and {format_bytes(there)} "
            "are there beside what is stored"
        )
    on_card(module, torch.device("cpu"))
    from diffusers.hooks import apply_group_offloading

    groups, said = leaf_by_leaf(card, [module])
    apply_group_offloading(module, **groups)
    return said


def _timed(call: Callable[[], object], card: Card) -> tuple[float, torch.Tensor]:
    card.sync()
    start = time.perf_counter()
    result = call()
    card.sync()
    assert isinstance(result, torch.Tensor)
    return time.perf_counter() - start, result


def _copied(module: nn.Module) -> int:
    """Bytes to the card, so far."""
    return getattr(getattr(tightfit.fitted(module).session, "copies", None), "bytes", 0)


def _part(job: Job, source: PipelineSource) -> Part:
    return next(part for part in source.parts if part.name == job.model.part)
