"""`encode` and `decode`: from files and tensors to results, on the memory there is."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters import parse_dtype
from tightfit.api.entry import Entry
from tightfit.api.latent import check_latent, frames_of, latent_file, pick
from tightfit.api.memory import open_memory
from tightfit.api.reading import Reading
from tightfit.api.result import Frames, Result
from tightfit.api.sources import Selection
from tightfit.api.work import Chosen, Watching, Work
from tightfit.api.writing import FrameSink, Target
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.media.background import parse_background
from tightfit.media.clip import parse_frames, parse_seconds
from tightfit.media.latents import LatentFile, load_latent, probe_latent
from tightfit.media.sound import write_sound
from tightfit.plan.tilesize import TileWish, check_wish
from tightfit.run.intake import Given
from tightfit.run.job import Evict, Request
from tightfit.run.vae import Traits, Vae

_PADS = ("repeat", "trim")


def encode(
    source: str | Path | torch.Tensor | Reading,
    *,
    vae: str | nn.Module | Vae | Chosen,
    card: str | Card | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    allocator: str | None = None,
    tile: str = "auto",
    overlap: str | None = None,
    dtype: str = "auto",
    estimate: bool = True,
    allow_cpu: bool = False,
    frames: str | slice | None = None,
    fps: str | Fraction | None = None,
    seconds: str | None = None,
    pad: str = "repeat",
    keep_alpha: bool = False,
    background: str = "white",
    sample: int | None = None,
    evict: Evict | None = None,
    watching: Watching | None = None,
) -> Result[LatentFile]:
    """Encode a picture, a clip, a folder of frames, sound, or a tensor.

    A tensor is [3,H,W] or [T,3,H,W] in 0..1, or, for a VAE of sound, [C,L] in -1..1.

    Args:
        source: a path or a host tensor, or one that is being read in the way that is asked for.
        vae: a SPEC (``random:NAME``, ``mini:NAME``, folder, file, hub id), a VAE module of
            diffusers, a `Vae`, or one that several jobs share.
        card, vram, reserve, tile, overlap: the memory options; sizes as text or bytes.
        dtype: ``auto`` is what the weights are stored in.
        estimate: ask the planner before each rung; else every rung is tried.
        allow_cpu: let the host do what the card cannot.
        frames: ``A:B:S`` of a clip. fps: pick frames by time. seconds: ``A:B`` of what is shown.
        pad: ``repeat`` the last frame up to a length that the VAE takes, or ``trim`` frames.
        keep_alpha: keep alpha beside the latent. background: what alpha is laid over.
        sample: draw from the posterior with this seed; None takes its mode.
        evict: frees so many bytes of idle models when asked, and says how many it freed.

    A clip is read while the VAE is loaded, and while its first frames are encoded, where the VAE
    walks through time.

    Raises `UsageError` and `InputError`: before any weight is read for what can be seen of a
    source without reading it, and for a clip that is damaged further on when that is found;
    `MemoryShortage` before or after trying. Then nothing is held on the card.
    """
    started = time.perf_counter()
    watching = watching or Watching()
    selection = selected(
        frames=frames,
        fps=fps,
        seconds=seconds,
        pad=pad,
        keep_alpha=keep_alpha,
        background=background,
    )
    asked = parse_dtype(dtype)
    memory = open_memory(
        card=card,
        vram=vram,
        reserve=reserve,
        mode=mode,
        allocator=allocator,
        tile=tile,
        overlap=overlap,
        estimate=estimate,
        allow_cpu=allow_cpu,
    )
    request = Request(
        memory.budget, memory.reserve, memory.wish, memory.estimate, evict, sample, allow_cpu
    )
    with source if isinstance(source, Reading) else Reading(source, selection) as reading:
        reading.seen()
        chosen = Chosen.of(vae)
        _check_wish(memory.wish, chosen.traits)
        reading.whom(chosen.traits)
        reading.go()
        work = Work(chosen, "encode", memory, request, watching, {}, started)
        entry = Entry(reading, chosen.traits, work, trim=pad == "trim")
        outcome, loaded = entry.run(lambda intake: work.run(intake, asked))
        file = latent_file(outcome.value, loaded, entry.footage, entry.padding.as_dict())
        about = {"shape": list(outcome.value.shape), "dtype": file.dtype}
        return Result(file, work.report(outcome, about))


def decode(
    latent: str | Path | LatentFile | torch.Tensor,
    *,
    vae: str | nn.Module | Vae | Chosen,
    card: str | Card | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    allocator: str | None = None,
    tile: str = "auto",
    overlap: str | None = None,
    dtype: str = "auto",
    estimate: bool = True,
    allow_cpu: bool = False,
    out: str | Path | Target | None = None,
    evict: Evict | None = None,
    watching: Watching | None = None,
) -> Result[Frames]:
    """Decode a latent file, a `LatentFile`, or a raw latent tensor [B,C,(T,)H,W].

    Padding that the encoding added is cut off again. With `out` the frames are written there while
    they are made, so that a long clip never lies in memory; the result then has no `pixels`. Other
    arguments and errors as for `encode`; a latent of another VAE is refused by name.
    """
    started = time.perf_counter()
    watching = watching or Watching()
    asked = parse_dtype(dtype)
    memory = open_memory(
        card=card,
        vram=vram,
        reserve=reserve,
        mode=mode,
        allocator=allocator,
        tile=tile,
        overlap=overlap,
        estimate=estimate,
        allow_cpu=allow_cpu,
    )
    path = Path(latent) if isinstance(latent, (str, Path)) else None
    header = probe_latent(Path(latent)) if isinstance(latent, (str, Path)) else latent
    chosen = Chosen.of(vae)
    check_latent(pick(header, chosen.traits), chosen.traits, path=path)
    _check_wish(memory.wish, chosen.traits)
    read_in = load_latent(Path(latent)) if isinstance(latent, (str, Path)) else latent
    content = pick(read_in, chosen.traits)
    request = Request(
        memory.budget, memory.reserve, memory.wish, memory.estimate, evict, None, allow_cpu
    )
    values = content.latent if isinstance(content, LatentFile) else content
    about = {
        "kind": "latent",
        "path": None if path is None else str(path),
        "shape": list(values.shape),
    }
    work = Work(chosen, "decode", memory, request, watching, about, started)
    target = out if out is None or isinstance(out, Target) else Target(Path(out))
    if target is not None and chosen.traits.axes != 1:
        with FrameSink(target, content, chosen.traits) as sink:
            work.delivery = sink
            outcome, loaded = work.run(Given(values), asked)
        frames = sink.left()
        work.adjusted.extend(sink.notes)
        made: dict[str, Any] = {
            "frames": sink.frames,
            "width": sink.width,
            "height": sink.height,
        }
    else:
        outcome, loaded = work.run(Given(values), asked)
        frames = frames_of(outcome.value, loaded.traits, content)
        shape = frames.pixels.shape
        made = {"frames": shape[0], "width": shape[-1], "height": shape[-2]}
        bad = int(torch.isnan(frames.pixels).sum())
        if bad:
            work.warnings.append(f"{bad} values of the result are NaN")
        if target is not None and frames.sound is not None:
            write_sound(target.path, frames.sound)
    if isinstance(content, LatentFile) and content.vae_hash not in (None, loaded.identity):
        work.warnings.append("the latent was made by a VAE of this class with other weights")
    if chosen.traits.axes == 1 and frames.sound is not None:
        made = {"samples": frames.sound.samples.shape[1], "rate": frames.sound.rate}
    if target is not None:
        made["path"] = str(target.path)
    return Result(frames, work.report(outcome, made))


def selected(
    *,
    frames: str | slice | None = None,
    fps: str | Fraction | None = None,
    seconds: str | None = None,
    pad: str = "repeat",
    keep_alpha: bool = False,
    background: str = "white",
) -> Selection:
    """Which part of a source is meant; arguments as of `encode`. Raises `UsageError`."""
    if pad not in _PADS:
        raise UsageError(f"--pad `{pad}` is unknown: use {' or '.join(_PADS)}.")
    return Selection(
        parse_frames(frames) if isinstance(frames, str) else frames,
        _rate(fps),
        None if seconds is None else parse_seconds(seconds),
        keep_alpha,
        parse_background(background),
    )


def _check_wish(wish: TileWish, traits: Traits) -> None:
    """Refuse a tile that is too small for the VAE, before its weights are read."""
    check_wish(wish, spatial=traits.spatial, temporal=traits.temporal, axes=traits.axes)


def _rate(fps: str | Fraction | None) -> Fraction | None:
    if fps is None or isinstance(fps, Fraction):
        return fps
    try:
        return Fraction(fps)
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"--fps `{fps}` is not a rate: use a number such as 24 or 24000/1001."
        ) from None
