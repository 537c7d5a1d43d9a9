"""`encode` and `decode`: from files and tensors to results, on the memory there is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters import (
    Source,
    adapt,
    fetch_vae,
    find_vae,
    load_vae,
    outline_vae,
    parse_dtype,
    stored_dtype,
)
from tightfit.api.memory import Memory, choose_dtype, open_memory
from tightfit.api.result import Frames, Result
from tightfit.api.sources import Footage, Selection, look, read
from tightfit.card import Card
from tightfit.errors import InputError, MemoryShortage, UsageError
from tightfit.media.background import lift, parse_background
from tightfit.media.clip import parse_frames
from tightfit.media.latents import LatentFile, load_latent, probe_latent
from tightfit.plan.tilesize import check_wish
from tightfit.report.record import Report
from tightfit.run.cancel import Cancel
from tightfit.run.estimate import Estimate
from tightfit.run.framing import to_frames, to_source
from tightfit.run.job import Evict, Job, Outcome, Request
from tightfit.run.ladder import Attempt, Lessons
from tightfit.run.preflight import preflight
from tightfit.run.rungs import EVICT, Progress
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.settings import Settings
from tightfit.watch import Recorder

_PADS = ("repeat", "trim")


@dataclass
class Watching:
    """Who looks on while a job runs.

    Attributes:
        recorder: keeps the events.
        progress: told after every tile.
        cancel: stops the job before its next tile.
    """

    recorder: Recorder = field(default_factory=Recorder)
    progress: Progress | None = None
    cancel: Cancel = field(default_factory=Cancel)


def encode(
    source: str | Path | torch.Tensor,
    *,
    vae: str | nn.Module | Vae,
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
    pad: str = "repeat",
    keep_alpha: bool = False,
    background: str = "white",
    sample: int | None = None,
    evict: Evict | None = None,
    watching: Watching | None = None,
) -> Result[LatentFile]:
    """Encode a picture, a clip, a folder of frames, or a tensor [3,H,W] / [T,3,H,W] in 0..1.

    Args:
        source: a path or a host tensor.
        vae: a SPEC (``random:NAME``, ``mini:NAME``, folder, file, hub id), a VAE module of
            diffusers, or a `Vae`.
        card, vram, reserve, tile, overlap: the memory options; sizes as text or bytes.
        dtype: ``auto`` is what the weights are stored in.
        estimate: ask the planner before each rung; else every rung is tried.
        allow_cpu: let the host do what the card cannot.
        frames: ``A:B:S`` of a clip. fps: pick frames by time.
        pad: ``repeat`` the last frame up to a length that the VAE takes, or ``trim`` frames.
        keep_alpha: keep alpha beside the latent. background: what alpha is laid over.
        sample: draw from the posterior with this seed; None takes its mode.
        evict: frees so many bytes of idle models when asked, and says how many it freed.

    Raises `UsageError` and `InputError` before any weight is read, `MemoryShortage` before or
    after trying; then nothing is held on the card.
    """
    started = time.perf_counter()
    watching = watching or Watching()
    if pad not in _PADS:
        raise UsageError(f"--pad `{pad}` is unknown: use {' or '.join(_PADS)}.")
    selection = Selection(
        parse_frames(frames) if isinstance(frames, str) else frames,
        _rate(fps),
        keep_alpha,
        parse_background(background),
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
    look(source, selection)
    chosen = _Chosen.of(vae)
    check_wish(memory.wish, spatial=chosen.traits.spatial, temporal=chosen.traits.temporal)
    footage = read(source, selection)
    samples, padding = to_source(footage.frames, chosen.traits, trim=pad == "trim")
    request = Request(
        memory.budget, memory.reserve, memory.wish, memory.estimate, evict, sample, allow_cpu
    )
    work = _Work(chosen, "encode", memory, request, watching, footage.about, started)
    work.adjusted.extend(footage.notes)
    if padding.frames:
        work.adjusted.append(
            f"padded {footage.frames.shape[0]} frames to "
            f"{footage.frames.shape[0] + padding.frames}, trimmed back after decoding"
        )
    if padding.dropped:
        work.adjusted.append(f"left out {padding.dropped} frames at the end")
    if padding.bottom or padding.right:
        height, width = footage.frames.shape[-2:]
        work.adjusted.append(
            f"padded {width}x{height} to {width + padding.right}x{height + padding.bottom}, "
            "cropped back after decoding"
        )
    outcome, loaded = work.run(samples, asked)
    file = _latent_file(outcome.value, loaded, footage, padding.as_dict())
    about = {"shape": list(outcome.value.shape), "dtype": file.dtype}
    return Result(file, work.report(outcome, about))


def decode(
    latent: str | Path | LatentFile | torch.Tensor,
    *,
    vae: str | nn.Module | Vae,
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
    evict: Evict | None = None,
    watching: Watching | None = None,
) -> Result[Frames]:
    """Decode a latent file, a `LatentFile`, or a raw latent tensor [B,C,(T,)H,W].

    Padding that the encoding added is cut off again. Arguments and errors as for `encode`; a
    latent of another VAE is refused by name.
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
    header = probe_latent(Path(latent)) if isinstance(latent, (str, Path)) else latent
    chosen = _Chosen.of(vae)
    _check_latent(header, chosen.traits)
    check_wish(memory.wish, spatial=chosen.traits.spatial, temporal=chosen.traits.temporal)
    content = load_latent(Path(latent)) if isinstance(latent, (str, Path)) else latent
    request = Request(
        memory.budget, memory.reserve, memory.wish, memory.estimate, evict, None, allow_cpu
    )
    values = content.latent if isinstance(content, LatentFile) else content
    about = {
        "kind": "latent",
        "path": str(latent) if isinstance(latent, (str, Path)) else None,
        "shape": list(values.shape),
    }
    work = _Work(chosen, "decode", memory, request, watching, about, started)
    outcome, loaded = work.run(values, asked)
    frames = _frames(outcome.value, loaded.traits, content)
    if isinstance(content, LatentFile) and content.vae_hash not in (None, loaded.identity):
        work.warnings.append("the latent was made by a VAE of this class with other weights")
    bad = int(torch.isnan(frames.pixels).sum())
    if bad:
        work.warnings.append(f"{bad} values of the result are NaN")
    shape = frames.pixels.shape
    made = {"frames": shape[0], "width": shape[-1], "height": shape[-2]}
    return Result(frames, work.report(outcome, made))


@dataclass(frozen=True)
class _Chosen:
    """The VAE that was asked for: ready, or still a source."""

    traits: Traits
    source: Source | None = None
    ready: Vae | None = None

    @classmethod
    def of(cls, vae: str | nn.Module | Vae) -> _Chosen:
        if isinstance(vae, str):
            source = find_vae(vae)
            return cls(source.traits, source=source)
        ready = vae if isinstance(vae, Vae) else adapt(vae)
        return cls(ready.traits, ready=ready)

    def about(self, loaded: Vae | None) -> dict[str, Any]:
        return {
            "spec": self.source.spec if self.source is not None else None,
            "name": self.traits.name,
            "hash": loaded.identity if loaded is not None else None,
            "dtype": _dtype_name(loaded.dtype) if loaded is not None else None,
            "random": loaded.random
            if loaded is not None
            else bool(self.source and self.source.random),
            "ratio": [self.traits.temporal, self.traits.spatial],
            "latent_channels": self.traits.latent_channels,
        }


@dataclass
class _Work:
    """One job with everything that its report needs."""

    chosen: _Chosen
    direction: Direction
    memory: Memory
    request: Request
    watching: Watching
    about: dict[str, Any]
    started: float
    adjusted: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    loaded: Vae | None = None

    def run(self, values: torch.Tensor, asked: torch.dtype | None) -> tuple[Outcome, Vae]:
        """Load the VAE and run; an error for want of memory carries the report."""
        before = self.memory.card.read().allocated
        try:
            vae = self._load(values, asked)
            self.loaded = vae
            job = Job(
                vae,
                self.direction,
                self.memory.card,
                self.request,
                self.watching.cancel,
                self.watching.recorder,
                Lessons(Settings.from_environ().cache_dir / "lessons.json"),
                self.watching.progress,
            )
            return job.run(values.to(vae.dtype)), vae
        except MemoryShortage as error:
            error.report = self._failed(error, before)
            raise

    def _load(self, values: torch.Tensor, asked: torch.dtype | None) -> Vae:
        ready, source = self.chosen.ready, self.chosen.source
        if ready is not None:
            if asked not in (None, ready.dtype):
                raise UsageError(
                    f"dtype {_dtype_name(asked)} is asked for, but the VAE that was given is "
                    f"{_dtype_name(ready.dtype)}: cast it first."
                )
            return ready
        assert source is not None
        source = fetch_vae(source)
        dtype, note = choose_dtype(
            asked,
            stored=stored_dtype(source),
            upcast=source.upcast,
            card=self.memory.card,
        )
        if note is not None:
            self.adjusted.append(note)
        outline = outline_vae(source, dtype=dtype)
        if outline is not None:
            preflight(outline, self.direction, self.memory.card, self.request, tuple(values.shape))
        return load_vae(source, dtype=dtype)

    def _same_bits(self, outcome: Outcome) -> bool:
        """Whether the result is that of a whole run, bit for bit.

        Not where a workspace was refused, or may have been: then other kernels may have run.
        """
        whole = outcome.attempt.rung in ("whole", EVICT)
        counted = outcome.attempt.refusals == 0 or self.memory.card.kind == "cpu"
        return whole and counted

    def report(self, outcome: Outcome, output: dict[str, Any]) -> Report:
        """For a job that was done."""
        warnings = [*self.warnings, *outcome.notes]
        if not outcome.exact:
            warnings.append(
                f"{outcome.attempt.rung}: close to a whole run, but not the same; the error is "
                "not bounded"
            )
        return Report(
            **self._common(),
            estimate=asdict(outcome.estimate),
            ledger={
                line: {"bytes": size, "source": source}
                for line, (size, source) in outcome.ledger.items()
            },
            attempts=[_attempt(attempt) for attempt in outcome.attempts],
            before_bytes=outcome.before_bytes,
            baseline_bytes=outcome.baseline_bytes,
            peak_bytes=outcome.peak_bytes,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            after_bytes=outcome.after_bytes,
            exact=outcome.exact,
            error_bound=0.0 if self._same_bits(outcome) else None,
            adjusted=[*self.adjusted, *outcome.adjusted],
            warnings=warnings,
            output=output,
        )

    def _failed(self, error: MemoryShortage, before: int | None) -> Report:
        """For a job that was refused, or of which no rung held; `before` was allocated then."""
        tries = [each for each in error.attempts if isinstance(each, Attempt)]
        coded = [each.baseline_bytes for each in tries if each.stage == self.direction]
        return Report(
            **self._common(),
            estimate=asdict(Estimate(None, None, None, "unknown: the job was not done")),
            attempts=[_attempt(each) for each in tries],
            before_bytes=before,
            baseline_bytes=coded[0] if coded else None,
            peak_bytes=_highest(each.peak_bytes for each in tries),
            peak_reserved_bytes=_highest(each.peak_reserved_bytes for each in tries),
            after_bytes=self.memory.card.read().allocated,
            adjusted=self.adjusted,
            warnings=[*self.warnings, *getattr(error, "__notes__", ())],
            error=str(error),
        )

    def _common(self) -> dict[str, Any]:
        card = self.memory.card
        return {
            "command": self.direction,
            "input": self.about,
            "model": self.chosen.about(self.loaded),
            "card": {
                "name": card.name,
                "kind": card.kind,
                "allocator": card.allocator,
                "total_bytes": card.read().total,
            },
            "budget_bytes": self.memory.budget,
            "seconds": round(time.perf_counter() - self.started, 3),
        }


def _highest(sizes: Iterable[int | None]) -> int | None:
    """Of those that are known."""
    return max((size for size in sizes if size is not None), default=None)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    values = asdict(attempt)
    values["tile"] = None if attempt.tile is None else list(attempt.tile)
    return values


def _latent_file(
    latent: torch.Tensor, vae: Vae, footage: Footage, padding: dict[str, int]
) -> LatentFile:
    traits = vae.traits
    moving = footage.fps is not None or footage.frames.shape[0] > 1
    return LatentFile(
        latent=latent,
        vae=traits.name,
        vae_hash=vae.identity,
        scale=traits.scale or None,
        shift=traits.shift or None,
        ratio=(traits.temporal, traits.spatial),
        dtype=_dtype_name(vae.dtype),
        width=footage.frames.shape[-1],
        height=footage.frames.shape[-2],
        frames=footage.frames.shape[0] - padding["dropped"] if moving else None,
        fps=footage.fps,
        padding=padding,
        alpha=footage.alpha,
        background=footage.background,
    )


def _check_latent(content: LatentFile | torch.Tensor, traits: Traits) -> None:
    """Refuse a latent of another VAE by name."""
    if isinstance(content, LatentFile):
        if content.vae != traits.name:
            raise InputError(
                f"The latent was made by {content.vae}, and {traits.name} cannot decode it: give "
                f"--vae a {content.vae}."
            )
        latent = content.latent
    else:
        latent = content
    batch, channels, *sizes = (*latent.shape, 0, 0)[: max(2, latent.dim())]
    if len(sizes) != traits.axes or channels != traits.latent_channels:
        raise InputError(
            f"The latent has {channels} channels on {len(sizes)} axes, and {traits.name} takes "
            f"{traits.latent_channels} on {traits.axes}."
        )
    if 0 in (batch, *sizes):
        raise InputError(f"The latent of shape {list(latent.shape)} holds nothing.")
    if isinstance(content, LatentFile):
        _check_cover(content, traits)


def _check_cover(file: LatentFile, traits: Traits) -> None:
    """Refuse a latent that is smaller than the picture or clip it says it is of."""
    sizes = [axis.samples for axis in traits.latent_axes(tuple(file.latent.shape[2:]))]
    frames = (file.frames or 1,) if traits.axes == 3 else ()
    said = (*frames, file.height, file.width)
    if any(size < least for size, least in zip(sizes, said, strict=True)):
        raise InputError(
            f"The latent covers {'x'.join(map(str, sizes))}, and its metadata say "
            f"{'x'.join(map(str, said))}: it was cut, or they were changed; encode it anew."
        )
    pictures = file.latent.shape[0] * (frames[0] if frames else 1)
    if file.alpha is not None and file.alpha.shape[0] != pictures:
        raise InputError(
            f"The latent is of {pictures} frames, and its alpha of {file.alpha.shape[0]}: drop the "
            "alpha, or encode it anew."
        )


def _frames(samples: torch.Tensor, traits: Traits, content: LatentFile | torch.Tensor) -> Frames:
    if not isinstance(content, LatentFile):
        return Frames(to_frames(samples, traits))
    pixels = to_frames(
        samples,
        traits,
        width=content.width,
        height=content.height,
        frames=content.frames or (1 if traits.axes == 3 else None),
    )
    if content.alpha is not None and content.background is not None:
        lifted = [
            lift(frame, alpha, background=content.background)
            for frame, alpha in zip(pixels, content.alpha, strict=True)
        ]
        pixels = torch.stack(lifted)
    return Frames(pixels, content.fps)


def _rate(fps: str | Fraction | None) -> Fraction | None:
    if fps is None or isinstance(fps, Fraction):
        return fps
    try:
        return Fraction(fps)
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"--fps `{fps}` is not a rate: use a number such as 24 or 24000/1001."
        ) from None


def _dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
