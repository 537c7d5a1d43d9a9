"""`generate`: pictures and clips by a whole pipeline, on the memory there is."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from tightfit.api.generation.asked import Asked
from tightfit.api.generation.making import Generated
from tightfit.api.generation.prompting import BadPrompt
from tightfit.api.generation.timeline import Timeline
from tightfit.api.generation.workplace import Line, Workplace
from tightfit.api.result import Result
from tightfit.api.sharing.shared_vae import Codes
from tightfit.api.work import Watching
from tightfit.card import Card
from tightfit.plan.tilesize import parse_tile
from tightfit.report.record import Report
from tightfit.run.ladder import leaving_nothing


def generate(
    pipeline: Any,
    *,
    prompt: str | Sequence[str | BadPrompt],
    out: str | Path | None = None,
    negative: str | None = None,
    width: int | None = None,
    height: int | None = None,
    frames: int | None = None,
    fps: str | Fraction | None = None,
    steps: int | None = None,
    guidance: float | None = None,
    seed: int | None = None,
    num: int = 1,
    image: str | Path | torch.Tensor | None = None,
    mask: str | Path | torch.Tensor | None = None,
    strength: float | None = None,
    scheduler: str | None = None,
    loras: Sequence[tuple[str | Path, float]] = (),
    parts: Mapping[str, str | Path] | None = None,
    base: str | None = None,
    weights: str | None = None,
    dtype: str = "auto",
    card: str | Card | Sequence[str | Card] | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    pack: str = "auto",
    allocator: str | None = None,
    latents: str | Path | None = None,
    preview: str | Path | None = None,
    resume: bool = False,
    keep_every: float = 60.0,
    tile: str = "auto",
    overlap: str | None = None,
    allow_cpu: bool = False,
    estimate: bool = True,
    watching: Watching | None = None,
) -> Result[tuple[Generated, ...]]:
    """Make pictures or clips; their files are whole or absent.

    Args:
        pipeline: a SPEC (``random:NAME``, a folder, a file, a hub id), or a pipeline of diffusers:
            one that is fitted is used as it is, another is fitted for this call and given back.
        prompt: one, or several: then one that fails does not stop the rest.
        out: ``.png``, or for clips ``.mp4``, ``.gif`` or a folder; of several pictures OUT-1 and so
            on, of several prompts OUT-0001. None writes nothing.
        negative: what not to show.
        width, height, frames: in pixels, and of a clip; by default what the pipeline is made for.
        fps: frames per second of a clip.
        steps, guidance, strength: as the pipeline has them; its own defaults where None.
        seed: of the first picture; the others follow it. None draws one.
        num: how many of each prompt.
        image, mask: to start from, and where to paint (white): files, or tensors [3,H,W] and
            [1,H,W] in 0..1.
        scheduler: such as ``unipc``, or a class of diffusers.
        loras: files, each with its strength.
        parts: networks from files of their own, by their names in the pipeline.
        base: where the rest of the pipeline comes from, if `pipeline` is one file.
        weights: ``bf16`` or ``fp8``, what weights become while they are loaded.
        dtype: to compute in; ``auto`` is as stored.
        card, vram, reserve, mode, pack, allocator: the memory options, as for `fit`. Several cards,
            as ``cuda:0,cuda:1`` or a list, share the networks; the denoiser has the one with the
            most room.
        latents: a file in which the latents stay; else they are kept until all is written.
        preview: a picture (PNG, WebP, JPEG) of how far it is, renewed after a step, at most once a
            second: the latents that are expected at the end, one colour for each place of them. No
            bit of the result changes, and the card does nothing for it.
        resume: go on from the state that an interrupted job with the same settings left.
        keep_every: seconds after which a job leaves its state beside `out` again.
        tile, overlap, allow_cpu: how the VAE codes, as for `decode`.
        estimate: ask a plan, before anything is loaded, whether it can run at all.

    Raises `UsageError` and `InputError` before any weight is read, `MemoryShortage` where even
    the smallest block does not fit, `JobFailed` where what was made is no picture; the last two
    say how to go on from the latents, where there are some.
    """
    started = time.perf_counter()
    watching = watching or Watching()
    lines: list[Line] = [(None, prompt)] if isinstance(prompt, str) else [*enumerate(prompt, 1)]
    asked = Asked.of(
        pipeline,
        prompts=None if isinstance(prompt, str) else len(lines),
        out=out,
        negative=negative,
        width=width,
        height=height,
        frames=frames,
        fps=fps,
        steps=steps,
        guidance=guidance,
        seed=seed,
        num=num,
        image=image,
        mask=mask,
        strength=strength,
        scheduler=scheduler,
        loras=loras,
        parts=parts,
        base=base,
        weights=weights,
        dtype=dtype,
        pack=pack,
        latents=latents,
        preview=preview,
        resume=resume,
        keep_every=keep_every,
        tile=tile,
        overlap=overlap,
    )
    place = Workplace.opened(
        asked,
        card=card,
        vram=vram,
        reserve=reserve,
        mode=mode,
        allocator=allocator,
        codes=Codes(parse_tile(tile, overlap), estimate, allow_cpu, watching.progress),
    )
    own = place.memory.card
    timeline = Timeline(own, watching)
    timeline.begins("load", since=started)
    if estimate and weights is None:
        place.refuse_too_large(timeline, started)
    with ExitStack() as stack:
        for each in place.cards:
            stack.enter_context(leaving_nothing(each))
        made, report = _made(place, lines, timeline, started)
    gc.collect()  # schedulers keep tensors on the card, and pipelines are cycles
    return Result(tuple(made), replace(report, after_bytes=own.read().allocated))


def _made(
    place: Workplace, lines: Sequence[Line], timeline: Timeline, started: float
) -> tuple[list[Generated], Report]:
    """Load, make, give back; whoever calls holds nothing of it."""
    with place.ready() as ready:
        return ready.make(lines, timeline, started=started)
