"""`encode_all` and `decode_all`: a folder of inputs to a folder of outputs, with one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from tightfit.adapters import parse_dtype
from tightfit.api.batches.ahead import Ahead
from tightfit.api.batches.batch import Batch, Finish, Tell, run
from tightfit.api.batches.items import LATENTS, PICTURES, SOUNDS, Item, find_items
from tightfit.api.batches.made_from import Record, latent_is_made, made_from
from tightfit.api.coding import decode, encode, selected
from tightfit.api.memory import open_memory
from tightfit.api.sources import Selection
from tightfit.api.work import Chosen
from tightfit.api.writing import Target
from tightfit.card import Card, open_card
from tightfit.errors import InputError, UsageError
from tightfit.media.latents import probe_latent, save_latent
from tightfit.media.outputs import PLAIN, check_frames
from tightfit.report.record import Report
from tightfit.run.vae import Vae

_MEMORY = ("vram", "reserve", "mode", "allocator", "tile", "overlap", "estimate", "allow_cpu")
_SELECTION = ("frames", "fps", "seconds", "pad", "keep_alpha", "background")
_WITHOUT_EFFECT = ("vram", "reserve", "mode", "allocator", "estimate", "allow_cpu", "watching")
"""Options that change where and how fast, and what comes out by rounding alone."""

Aim = Callable[[Path], Target]
"""How frames are written to a path."""


def encode_all(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    vae: str | nn.Module | Vae,
    card: str | Card | None = None,
    tell: Tell | None = None,
    finish: Finish | None = None,
    **options: Any,
) -> Batch:
    """Encode many pictures and clips to ``OUT/NAME.safetensors``; the VAE is loaded once.

    An input that fails stops nothing. One whose output is there, whole, and made of the same bytes
    in the same way is not encoded again. While one is encoded the next is read.

    Args:
        sources: files, patterns such as ``*.png``, or folders, of which the pictures and clips are
            meant, or the sounds for a VAE of sound (a folder of frames is no item: encode it
            alone).
        out: a folder, which is made where there is none.
        vae, card: as for `encode`.
        tell, finish: called before and after each item.
        options: those of `encode`.

    Returns:
        What became of each item. Between items the card holds what it held before.

    Raises `UsageError` and `InputError` for what is wrong with all of it, before anything is read.
    """
    selection = selection_of(options)
    shared, opened = open_shared(vae, card, options)
    items = items_to_encode(sources, out, shared)
    settings = settings_of(options)

    @cache
    def wanted(item: Item) -> dict[str, Any]:
        return made_from(item.source, shared, settings)

    def do(item: Item) -> Report:
        with ahead.of(item) as reading:
            return make_latent(item.out, reading, wanted(item), shared, opened, options)

    def kept(item: Item) -> bool:
        return item.out.is_file() and latent_is_made(item.out, wanted(item))

    with Ahead(items, selection, shared.traits) as ahead:
        return run("encode", items, do, kept, card=opened, tell=tell, finish=finish)


def decode_all(
    latents: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    vae: str | nn.Module | Vae,
    card: str | Card | None = None,
    aim: Aim = Target,
    written_as: Any = None,
    tell: Tell | None = None,
    finish: Finish | None = None,
    **options: Any,
) -> Batch:
    """Decode many latents to ``OUT/NAME.png``, or ``.mp4`` for clips; the VAE is loaded once.

    As `encode_all`; what each output was made of is kept in ``OUT/.tightfit-batch.json``. Frames
    are written while they are decoded.

    Args:
        latents: files, patterns, or folders, of which the ``.safetensors`` and ``.latent`` are
            meant.
        aim: how they are written, for a path that says what is written.
        written_as: what of `aim` changes an output, as JSON.
        options: those of `decode`.
    """
    folder = folder_of(out)
    items = find_items(_listed(latents), folder, LATENTS, _ending)
    shared, opened = open_shared(vae, card, options)
    settings = {**settings_of(options), "written_as": written_as}
    record = Record(folder)

    @cache
    def wanted(item: Item) -> dict[str, Any]:
        return made_from(item.source, shared, settings)

    def do(item: Item) -> Report:
        made = wanted(item)
        _check(item)
        result = decode(item.source, vae=shared, card=opened, out=aim(item.out), **options)
        record.add(item.out, made)
        return result.report

    def kept(item: Item) -> bool:
        return item.out.exists() and record.is_made(item.out, wanted(item))

    return run("decode", items, do, kept, card=opened, tell=tell, finish=finish)


def items_to_encode(
    sources: str | Path | Iterable[str | Path], out: str | Path, chosen: Chosen
) -> tuple[Item, ...]:
    """Which file becomes which; the folder `out` is made. Raises as `encode_all` does."""
    folder = folder_of(out)
    kinds = SOUNDS if chosen.traits.axes == 1 else PICTURES
    return find_items(_listed(sources), folder, kinds, lambda _: ".safetensors")


def make_latent(
    out: Path,
    source: Any,
    made: Mapping[str, Any],
    chosen: Chosen,
    card: Card,
    options: Mapping[str, Any],
) -> Report:
    """Encode `source` to the file `out`, which tells what it is `made` of.

    `source` and `options` are those of `encode`; raises as it does.
    """
    result = encode(source, vae=chosen, card=card, **options)
    save_latent(out, replace(result.value, source=made))
    return result.report.with_output(path=str(out))


def selection_of(options: Mapping[str, Any]) -> Selection:
    """Which part of a source is meant by the options of `encode`. Raises `UsageError`."""
    return selected(**{key: options[key] for key in _SELECTION if key in options})


def _listed(sources: str | Path | Iterable[str | Path]) -> list[str | Path]:
    return [sources] if isinstance(sources, (str, Path)) else list(sources)


def folder_of(out: str | Path) -> Path:
    """The folder of the outputs, which is made. Raises `UsageError`, `InputError`."""
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, and the outputs of a batch go into a folder.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write {folder}: {error.strerror or error}.") from None
    return folder


def open_shared(
    vae: str | nn.Module | Vae, card: str | Card | None, options: Mapping[str, Any]
) -> tuple[Chosen, Card]:
    """The VAE and the card, opened once; what is wrong with the options is said here."""
    opened = card if isinstance(card, Card) else open_card(card)
    parse_dtype(options.get("dtype", "auto"))
    open_memory(card=opened, **{key: options[key] for key in _MEMORY if key in options})
    return Chosen.of(vae).shared(), opened


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What changes an output."""
    asked = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
    return {key: str(value) for key, value in sorted(asked.items()) if value is not None}


def _ending(latent: Path) -> str:
    """Of the output; a latent that cannot be read fails when its turn comes."""
    with suppress(InputError):
        header = probe_latent(latent)
        if header.latent.dim() == 3:
            return ".wav"
        if header.pictures > 1:
            return "" if header.alpha is not None else ".mp4"
    return ".png"


def _check(item: Item) -> None:
    """Refuse an output that does not hold what the latent holds, before it is decoded."""
    header = probe_latent(item.source)
    if header.latent.dim() > 3:
        alpha = header.alpha is not None
        check_frames(item.out, PLAIN, frames=header.pictures, alpha=alpha, what=str(item.source))
