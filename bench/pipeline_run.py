"""One process of `pipeline.py`: one row of a job, on a card that is as small as the job says."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
import transformers  # noqa: F401 (its loggers exist before they are muted)
from pipeline_jobs import OURS, RESIDENT, Job
from pipeline_part import measured_part, whole_part
from pipeline_peers import Told, prepare
from pipeline_place import LONG, Highest, Place, Whole, digest_of
from pipeline_rows import PipelineRow, bound_of
from pipeline_weights import drawn
from torch import nn

import tightfit
from tightfit.adapters.libraries import quiet
from tightfit.adapters.loading.assembling import assembled
from tightfit.adapters.loading.whole import PipelineSource, find_pipeline
from tightfit.adapters.parts import DENOISE
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.place.link import measure_link
from tightfit.units import format_bytes
from tightfit.weigh import weight_bytes

PROMPT = "a red fox in the snow at dawn, seen from afar"
_WORDS = 300
_AGAIN = 4
"""Resident calls that one of ours takes at most, once its weights are packed."""


@dataclass
class Calls:
    """Calls of a pipeline, and what was seen in them.

    Attributes:
        pipe, job, card: what is called, for what, and where.
        latents: that the VAE was given in the last one, on the host.
        ends: of its steps, where they are waited for.
        passes: calls of the denoiser in it.
    """

    pipe: Any
    job: Job
    card: Card
    latents: torch.Tensor | None = None
    ends: list[float] = field(default_factory=list)
    passes: int = 0

    def __post_init__(self) -> None:
        """Look at the VAE's input on its way."""
        decode = self.pipe.vae.decode

        def looked_at(z: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not z.is_meta:  # a dry run, or one that is written down
                self.latents = z.detach()
            return decode(z, *args, **kwargs)

        self.pipe.vae.decode = looked_at
        self.pipe.set_progress_bar_config(disable=True)

    def one(self) -> float:
        """Pictures, as a user makes them. Returns seconds."""
        size, model = self.job.model.size, self.job.model
        asked: dict[str, Any] = {"num_frames": size.frames} if size.frames > 1 else {}
        self.card.sync()
        start = time.perf_counter()
        self.pipe(
            prompt=PROMPT,
            width=size.width,
            height=size.height,
            num_inference_steps=model.steps,
            generator=torch.Generator().manual_seed(0),
            output_type="pil",
            **asked,
        )
        self.card.sync()
        return time.perf_counter() - start

    def stepwise(self, denoiser: nn.Module) -> Whole:
        """One more call in which each step is waited for; of a pipeline that is on the card."""
        self.ends, self.passes = [], 0
        plain = self.pipe.scheduler.step

        def step(*args: Any, **kwargs: Any) -> Any:
            done = plain(*args, **kwargs)
            self.card.sync()
            self.ends.append(time.perf_counter())
            if len(self.ends) == 1:
                self.card.reset_peaks()
                self._held = self.card.read().allocated or 0
            self._peak = self.card.read().peak_allocated or 0
            return done

        def count(*_: object) -> None:
            self.passes += 1

        handle = denoiser.register_forward_pre_hook(count)
        self.pipe.scheduler.step = step
        try:
            seconds = self.one()
        finally:
            self.pipe.scheduler.step = plain
            handle.remove()
        steps = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return Whole(
            seconds,
            median(steps) if steps else seconds,
            max(0, self._peak - self._held),
            self.passes / max(1, len(self.ends)),
        )

    def digest(self) -> str:
        """Of the last latents."""
        assert self.latents is not None
        return digest_of(self.latents)


def row_of(place: Place, job: Job, who: str, deadline: float) -> PipelineRow:
    """Do it. What goes wrong is a row with a note."""
    row = PipelineRow(job.name, who, budget_bytes=None if who == RESIDENT else job.bytes)
    card = place.card(job, who)
    _warm(card)
    rate = measure_link(card.device, free=card.read().free).pinned
    row = replace(row, link_rate=rate)
    pipe: Any = None
    try:
        source = find_pipeline(f"random:{job.model.spec}")
        start = time.perf_counter()
        pipe = _loaded(place, job, source)
        row = replace(row, load_seconds=time.perf_counter() - start)
        measure = _measured if job.model.part is None else measured_part
        with nullcontext() if who == RESIDENT else place.small(card, job.bytes):
            return measure(place, job, who, card=card, pipe=pipe, row=row, deadline=deadline)
    except Exception as error:
        now = card.read()
        row = replace(row, completed=False, peak_reserved_bytes=now.peak_reserved)
        return replace(row, peak_allocated_bytes=now.peak_allocated).said(_told(error))
    finally:
        with suppress(UsageError):  # where nobody fitted it
            tightfit.unfit(pipe)


def _loaded(place: Place, job: Job, source: PipelineSource) -> Any:
    """The pipeline, or the one network of it that the job is about."""
    with quiet():
        if job.model.part is not None:
            return whole_part(place, job, source)
        if place.store is not None:
            return place.store.pipeline(source)
        return assembled(source, {p.name: drawn(p, job.model.weights) for p in source.parts})


def _measured(
    place: Place,
    job: Job,
    who: str,
    *,
    card: Card,
    pipe: Any,
    row: PipelineRow,
    deadline: float,
) -> PipelineRow:
    card.trim()
    highest = Highest(card)
    start = time.perf_counter()
    source = find_pipeline(f"random:{job.model.spec}")
    name = next(part.name for part in source.parts if part.stage == DENOISE)
    whole = place.whole()
    activations = 0 if whole is None else whole.activations
    weights = weight_bytes(getattr(pipe, name))
    how = _set_up(who, pipe, job, Told(card, job.bytes, activations, place.margin))
    card.sync()
    row = replace(row, setup_seconds=time.perf_counter() - start)
    calls = Calls(pipe, job, card)
    seconds = [calls.one()]
    row = replace(row, first_seconds=seconds[0])
    before = _spent(pipe) if who == OURS else {}
    copied = _copied(pipe) if who == OURS else 0
    words = ["random weights", how]
    expected = seconds[0]
    if who == OURS and whole is not None:  # the first one has packed
        expected = min(expected, _AGAIN * whole.seconds)
    if expected <= LONG and time.monotonic() + expected < deadline:
        seconds = [calls.one()]
    else:
        before, copied = {}, 0
        words.append("the first call counts, set-up of the call included")
    row = replace(
        row,
        seconds=seconds[0],
        all_seconds=tuple(seconds),
        peak_reserved_bytes=highest.reserved,
        peak_allocated_bytes=highest.allocated,
        digest=calls.digest(),
    )
    if who == RESIDENT:
        found = calls.stepwise(getattr(pipe, name))
        place.keep(replace(found, seconds=seconds[0]))
        words.append(f"a step {found.step:.4f} s, {format_bytes(found.activations)} beside weights")
        row = replace(row, step_seconds=found.step, activations_bytes=found.activations)
    elif whole is not None and row.link_rate:
        room = max(0, job.bytes - whole.activations)
        bound = bound_of(
            step=whole.step, weights=weights, room=room, rate=row.link_rate, passes=whole.passes
        )
        late = whole.passes * max(0, weights - room) / row.link_rate - whole.step
        limit = whole.seconds + job.model.steps * max(0.0, late)
        row = replace(row, bound=bound, limit_seconds=limit)
        words.append(bound)
    if who == OURS:
        spent = {key: each - before.get(key, 0.0) for key, each in _spent(pipe).items()}
        row = replace(row, stages=spent, copied_bytes=_copied(pipe) - copied)
        told = ", ".join(f"{key} {each:.2f} s" for key, each in spent.items())
        words.append(f"{told}: {row.explained or 0:.1f} % of the call")
        words += [f"{each.stage} by {each.rung}" for each in tightfit.fitted(pipe).codings[-1:]]
    return row.said(*words)


def _spent(pipe: Any) -> dict[str, float]:
    """Seconds by part, so far."""
    return {name: each.seconds for name, each in tightfit.fitted(pipe).times.items()}


def _copied(pipe: Any) -> int:
    """Bytes to the card, so far, of networks that stream."""
    total = 0
    for network in tightfit.fitted(pipe).networks.values():
        total += getattr(getattr(network.session, "copies", None), "bytes", 0)
    return total


def _set_up(who: str, pipe: Any, job: Job, told: Told) -> str:
    """Make `pipe` ready to be called; what its row says of that."""
    if who == OURS:
        tightfit.fit(pipe, vram=job.bytes, card=told.card)
    elif who != RESIDENT:
        return prepare(who, pipe, told)
    elif job.model.weights == "fp8":
        tightfit.fit(pipe, card=told.card, mode="high")
    else:
        pipe.to(told.card.device)
    return ""


def _warm(card: Card) -> None:
    """The context and the libraries' own buffers are there before the card gets small."""
    one = torch.ones(1, 8, 64, 64, dtype=torch.bfloat16, device=card.device)
    two = nn.functional.scaled_dot_product_attention(one, one, one) @ one
    nn.functional.conv2d(two, one[:, :, :3, :3]).sum().cpu()
    card.sync()
    del one, two
    gc.collect()


def _told(error: Exception) -> str:
    """The words of an error; the error itself holds frames, and they hold tensors."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines)[:_WORDS]}" if lines else type(error).__name__
