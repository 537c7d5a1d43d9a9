"""What `generate` is asked for, looked at and not refused, before a card is touched."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.live.loras import check_files
from tightfit.adapters.live.orders import Order, Speech
from tightfit.adapters.live.variants import class_for
from tightfit.adapters.specs import parse_dtype
from tightfit.api.generation.choice import Choice
from tightfit.api.generation.making import kept_seed, written_seed
from tightfit.api.generation.pictures import picture_of
from tightfit.api.generation.targets import check_target, names
from tightfit.errors import UsageError
from tightfit.media.files import check_writable
from tightfit.media.latents import LATENT_KINDS
from tightfit.media.picture_writer import PICTURE_KINDS
from tightfit.plan.size import LARGEST_BATCH
from tightfit.plan.tilesize import parse_tile

_MOST_SEED = 2**63 - 1
_DRAWN = 2**32


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A job, as far as it is known without a card.

    Attributes:
        chosen: the pipeline; kind: the class that makes what is meant, and how it is spoken to.
        order: all but the prompt.
        loras: files, each with its strength.
        dtype: to compute in; None is as stored.
        weights, scheduler, pack: as for `generate`.
        seeds: of the pictures of one prompt.
        out, latents, preview: files; None where none is meant.
        resume, keep_every: as for `generate`.
    """

    chosen: Choice
    kind: type
    speech: Speech
    order: Order
    loras: tuple[tuple[Path, float], ...]
    dtype: torch.dtype | None
    weights: str | None
    scheduler: str | None
    pack: str
    seeds: tuple[int, ...]
    out: Path | None
    latents: Path | None
    preview: Path | None
    resume: bool
    keep_every: float

    @classmethod
    def of(
        cls,
        pipeline: Any,
        *,
        prompts: int | None,
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
        pack: str = "auto",
        latents: str | Path | None = None,
        preview: str | Path | None = None,
        resume: bool = False,
        keep_every: float = 60.0,
        tile: str = "auto",
        overlap: str | None = None,
    ) -> Asked:
        """From the options of `generate`.

        `prompts`: how many there are; None is one, whose files have no number. Raises `UsageError`
        and `InputError`; no weight is read.
        """
        if prompts == 0:
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
            first = _drawn_seed(target, num, prompts, resume=resume)
        parse_tile(tile, overlap)
        return cls(
            chosen=chosen,
            kind=kind,
            speech=speech,
            order=order,
            loras=files,
            dtype=parse_dtype(dtype),
            weights=weights,
            scheduler=scheduler,
            pack=pack,
            seeds=tuple(first + at for at in range(num)),
            out=target,
            latents=kept_latents,
            preview=shown,
            resume=resume,
            keep_every=keep_every,
        )

    @property
    def worn(self) -> dict[str, str]:
        """What settings tell of LoRAs."""
        worn = ", ".join(f"{path}:{strength:g}" for path, strength in self.loras)
        return {"LoRA": worn} if worn else {}

    def what(self, dtype: torch.dtype | None) -> dict[str, str]:
        """What settings do not tell of a job that computes in `dtype`.

        Other pictures, files or types make it another one.
        """
        order = self.order
        pictures = {
            name: hashlib.sha256(picture.tobytes()).hexdigest()
            for name, picture in (("image", order.image), ("mask", order.mask))
            if picture is not None
        }
        told = {
            "size": f"{order.width}x{order.height}x{order.frames}",
            "weights": f"{self.weights}, {dtype}",
            "parts": ", ".join(f"{name} {path}" for name, path in self.chosen.files.items()),
        }
        return {**told, **pictures}

    def outs(self, item: int | None) -> tuple[Path, ...] | None:
        """The files of a prompt: of several, its number from 1."""
        return None if self.out is None else names(self.out, len(self.seeds), item=item)

    def latent_files(self, item: int | None) -> tuple[Path, ...] | None:
        """Likewise those in which its latents stay."""
        return None if self.latents is None else names(self.latents, len(self.seeds), item=item)


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
        firsts = [names(out, num, item=item)[0] for item in items]
        known = kept_seed(firsts)
        if known is None and prompts is not None:
            known = written_seed(firsts)
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
