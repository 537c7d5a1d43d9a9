"""`generate`: pictures and clips by a whole pipeline, on the memory there is."""

from __future__ import annotations

import gc
import hashlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from tightfit import __version__
from tightfit.adapters.live.loras import check_files, wearing
from tightfit.adapters.live.orders import Order, Speech
from tightfit.adapters.live.variants import by_scheduler, class_for, variant_of
from tightfit.adapters.loading.whole import load_pipeline
from tightfit.adapters.specs import parse_dtype
from tightfit.api.generation.choice import Choice
from tightfit.api.generation.generated import SoFar, describe, failed, refused
from tightfit.api.generation.making import Generated, Keeping, Making, kept_seed
from tightfit.api.generation.pictures import picture_of
from tightfit.api.generation.preview import Preview
from tightfit.api.generation.prompting import BadPrompt
from tightfit.api.generation.targets import check_target, names
from tightfit.api.generation.timeline import Timeline
from tightfit.api.memory import Memory
from tightfit.api.result import Result
from tightfit.api.sharing.pipelines import (
    FittedPipeline,
    fit_pipeline,
    fitted_pipeline,
    unfit_pipeline,
)
from tightfit.api.sharing.session import open_any
from tightfit.api.sharing.shared_vae import Codes
from tightfit.api.work import Watching, dtype_name
from tightfit.card import Card
from tightfit.errors import Cancelled, MemoryShortage, TightfitError, UsageError
from tightfit.media.files import check_writable
from tightfit.media.latents import LATENT_KINDS
from tightfit.media.picture_writer import PICTURE_KINDS
from tightfit.plan.size import LARGEST_BATCH
from tightfit.plan.tilesize import parse_tile
from tightfit.report.oom_log import without_prompts
from tightfit.report.record import Report
from tightfit.run.ladder import empty_frames, leaving_nothing
from tightfit.watch.events import Told

_MOST_SEED = 2**63 - 1
_DRAWN = 2**32


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
    several = not isinstance(prompt, str)
    prompts: Sequence[str | BadPrompt] = [prompt] if isinstance(prompt, str) else list(prompt)
    if not prompts:
        raise UsageError("There is no prompt.")
    _check_seed(seed)
    if not 1 <= num <= LARGEST_BATCH:
        raise UsageError(f"--num `{num}` is out of range: use 1 to {LARGEST_BATCH}.")
    order = Order(
        "",
        negative,
        width,
        height,
        frames,
        _rate(fps),
        steps,
        guidance,
        picture_of(image, what="--image"),
        picture_of(mask, what="--mask", grey=True),
        strength,
    )
    chosen = Choice.of(pipeline, parts, base, weights)
    kind = class_for(chosen.class_name, image=order.image is not None, mask=mask is not None)
    speech = Speech.of(kind)
    speech.check(order)
    chosen.check_steps(steps, scheduler)
    order = chosen.sized(order, speech)
    if chosen.legal is not None:
        chosen.legal.check(width=order.width, height=order.height, frames=order.frames)
    files = tuple((Path(path), strength_) for path, strength_ in loras)
    check_files(files)
    target = None if out is None else Path(out)
    kept_latents = None if latents is None else Path(latents)
    shown = None if preview is None else Path(preview)
    _check_outputs(target, kept_latents, shown, order, speech, resume=resume)
    first = seed
    if first is None:
        first = _drawn_seed(target, num, len(prompts) if several else None, resume=resume)
    asked = parse_dtype(dtype)
    cards = () if card is None else _roomiest_first(card)
    memory = chosen.memory(
        card=cards[0] if cards else None,
        vram=vram,
        reserve=reserve,
        mode=mode,
        allocator=allocator,
        dtype=asked,
    )
    codes = Codes(parse_tile(tile, overlap), estimate, allow_cpu, watching.progress)
    computed, note = chosen.computes_in(asked, memory, weights)
    task = _Task(
        chosen=chosen,
        kind=kind,
        speech=speech,
        order=order,
        memory=memory,
        cards=cards or (memory.card,),
        vram=vram,
        reserve=reserve,
        loras=files,
        dtype=computed,
        note=note,
        weights=weights,
        scheduler=scheduler,
        pack=pack,
        codes=codes,
        seeds=tuple(first + at for at in range(num)),
        out=target,
        latents=kept_latents,
        preview=shown,
        resume=resume,
        keep_every=keep_every,
        timeline=Timeline(memory.card, watching),
        started=started,
        before=memory.card.read().allocated,
    )
    task.timeline.begins("load", since=started)
    if estimate and weights is None:
        _refuse_too_large(task)
    with ExitStack() as stack:
        for each in task.cards:
            stack.enter_context(leaving_nothing(each))
        made, report = _made(task, prompts, several=several)
    gc.collect()  # schedulers keep tensors on the card, and pipelines are cycles
    return Result(tuple(made), replace(report, after_bytes=memory.card.read().allocated))


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Everything that was asked for, looked at and not refused."""

    chosen: Choice
    kind: type
    speech: Speech
    order: Order
    memory: Memory
    cards: tuple[Card, ...]
    vram: str | int | None
    reserve: str | int | None
    loras: tuple[tuple[Path, float], ...]
    dtype: torch.dtype | None
    note: str | None
    weights: str | None
    scheduler: str | None
    pack: str
    codes: Codes
    seeds: tuple[int, ...]
    out: Path | None
    latents: Path | None
    preview: Path | None
    resume: bool
    keep_every: float
    timeline: Timeline
    started: float
    before: int | None


def _refuse_too_large(task: _Task) -> None:
    """What cannot run within the budget, as far as a plan can tell."""
    try:
        several = len(task.cards) > 1
        task.chosen.refuse_too_large(task.order, task.memory, task.dtype, one_of_several=several)
    except MemoryShortage as error:
        about = task.chosen.about(None)
        error.report = refused(error, task.memory, about, task.before, task.started)
        error.recorder = task.timeline.watching.recorder
        raise


def _made(
    task: _Task, prompts: Sequence[str | BadPrompt], *, several: bool
) -> tuple[list[Generated], Report]:
    """Load, make, give back."""
    made: list[Generated] = []
    chosen = task.chosen
    recorder = task.timeline.watching.recorder
    with (
        _ready(task) as (pipe, fitted),
        _coding(fitted, task.codes),
        fitted.recording(recorder),
    ):
        preview = None if task.preview is None else Preview.of(fitted, task.preview)
        task.timeline.begins(None)
        told = {
            "scheduler": type(pipe.scheduler).__name__,
            "model": chosen.spec,
            **_worn(task.loras),
            "Software": f"tightfit {__version__}",
        }
        latents = task.latents is not None
        what = _what(task)
        keeping = Keeping(task.keep_every, task.resume, latents, *chosen.decoder(pipe), what)
        making = Making(pipe, fitted, task.speech, task.timeline, keeping, told, preview)
        making.adjusted += [] if task.note is None else [task.note]
        tries = {name: len(network.attempts) for name, network in fitted.networks.items()}
        so_far = SoFar(tries, tuple(fitted.codings), task.before, task.started)
        try:
            for number, text in enumerate(prompts, 1):
                made += _item(making, task, text, number if several else None)
        except (KeyboardInterrupt, Cancelled) as error:
            if made:
                error.add_note(f"{len(made)} were written before, and stay")
            raise
        except TightfitError as error:
            error.report = report = failed(error, making, task.memory, chosen.about(fitted), so_far)
            recorder.tell(Told(without_prompts(report.as_dict())))
            raise
        report = describe(making, task.memory, chosen.about(fitted), made, so_far)
        recorder.tell(Told(without_prompts(report.as_dict())))
        return made, report


def _what(task: _Task) -> dict[str, str]:
    """What settings do not tell of a job: other pictures, files or types make it another one."""
    order = task.order
    pictures = {
        name: hashlib.sha256(picture.tobytes()).hexdigest()
        for name, picture in (("image", order.image), ("mask", order.mask))
        if picture is not None
    }
    told = {
        "size": f"{order.width}x{order.height}x{order.frames}",
        "weights": f"{task.weights}, {task.dtype}",
        "parts": ", ".join(f"{name} {path}" for name, path in task.chosen.files.items()),
    }
    return {**told, **pictures}


def _worn(loras: Sequence[tuple[Path, float]]) -> dict[str, str]:
    worn = ", ".join(f"{path}:{strength:g}" for path, strength in loras)
    return {"LoRA": worn} if worn else {}


def _item(making: Making, task: _Task, text: str | BadPrompt, item: int | None) -> list[Generated]:
    """What becomes of one prompt; of several, an error is one of the results."""
    seeds, count = task.seeds, len(task.seeds)
    if isinstance(text, BadPrompt):
        return [Generated(None, seeds[0], error=f"{text.reason}.")]
    outs = None if task.out is None else names(task.out, count, item=item)
    kept = None if task.latents is None else names(task.latents, count, item=item)
    order = replace(task.order, prompt=text)
    if task.resume and item is not None and outs is not None:
        known = making.there_already(order, seeds, outs)
        if known:
            return known
    try:
        return making.make(order, seeds, outs, kept)
    except Cancelled:
        raise
    except Exception as error:
        if item is None:
            raise
        reason = str(error).strip() or type(error).__name__
        empty_frames(error)
        return [Generated(text, seeds[0], error=reason)]


@contextmanager
def _ready(task: _Task) -> Iterator[tuple[Any, FittedPipeline]]:
    """While inside, the pipeline is loaded and fitted, as a pipeline of its kind."""
    chosen, memory = task.chosen, task.memory
    there, pipe = chosen.fitted, chosen.live
    with ExitStack() as stack:
        if pipe is None:
            assert chosen.source is not None
            pipe = load_pipeline(
                chosen.source, dtype=task.dtype, weights=task.weights, scheduler=task.scheduler
            )
        elif task.dtype not in (None, pipe.dtype):
            raise UsageError(
                f"dtype {dtype_name(task.dtype)} is asked for, and the pipeline is "
                f"{dtype_name(pipe.dtype)}: cast it first."
            )
        pipe = variant_of(pipe, task.kind)
        if chosen.live is not None:
            stack.enter_context(by_scheduler(pipe, task.scheduler))
        stack.enter_context(wearing(pipe, task.loras))
        if there is None:
            fit_pipeline(
                pipe,
                open_all=lambda: task.cards,
                vram=task.vram,
                reserve=task.reserve,
                mode=memory.mode,
                pack=task.pack,
                home=0,
            )
            stack.callback(lambda: unfit_pipeline(pipe))
            there = fitted_pipeline(pipe)
        yield pipe, there


def _roomiest_first(card: str | Card | Sequence[str | Card]) -> tuple[Card, ...]:
    """Of equal ones, as they were named."""
    one = isinstance(card, (str, Card))
    opened = open_any(card, None) if one else open_any(None, card)  # type: ignore[arg-type]
    now = {each.device: each.read() for each in opened}

    def room(each: Card) -> int:
        usable = now[each.device].usable
        return now[each.device].total if usable is None else usable

    return tuple(sorted(opened, key=room, reverse=True))


@contextmanager
def _coding(fitted: FittedPipeline, codes: Codes) -> Iterator[None]:
    """While inside, the pipeline's VAEs code as this job wants it."""
    before, fitted.codes = fitted.codes, codes
    try:
        yield
    finally:
        fitted.codes = before


def _check_outputs(
    out: Path | None,
    latents: Path | None,
    preview: Path | None,
    order: Order,
    speech: Speech,
    *,
    resume: bool,
) -> None:
    if out is not None:
        check_target(out, clips=speech.makes_clips, frames=order.frames)
    elif resume:
        raise UsageError("--resume goes on from a file beside OUT: say which, with -o.")
    if latents is not None:
        check_writable(latents, LATENT_KINDS)
        if out is not None and latents.resolve() == out.resolve():
            raise UsageError(f"{latents} is the output and --latents: give each its own name.")
    if preview is not None:
        check_writable(preview, PICTURE_KINDS)
        if out is not None and preview.resolve() == out.resolve():
            raise UsageError(f"{preview} is the output and --preview: give each its own name.")


def _check_seed(seed: int | None) -> None:
    if seed is not None and not 0 <= seed <= _MOST_SEED:
        raise UsageError(f"--seed `{seed}` is out of range: use 0 to {_MOST_SEED}.")


def _drawn_seed(out: Path | None, num: int, prompts: int | None, *, resume: bool) -> int:
    """That of the job which is gone on with, else a new one."""
    if resume and out is not None:
        items = [None] if prompts is None else list(range(1, prompts + 1))
        known = kept_seed([names(out, num, item=item)[0] for item in items])
        if known is not None:
            return known
    return secrets.randbelow(_DRAWN)


def _rate(fps: str | Fraction | None) -> Fraction | None:
    if fps is None or isinstance(fps, Fraction):
        return fps
    try:
        rate = Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate <= 0:
        raise UsageError(f"--fps `{fps}` is not a rate: use a number such as 24 or 24000/1001.")
    return rate
