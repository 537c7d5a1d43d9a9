"""Latents on disk: safetensors with the tensor `latent` and what a decode must know of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tightfit.errors import InputError
from tightfit.media.background import Colour
from tightfit.media.files import check_readable, check_writable, whole_file
from tightfit.media.samples import check_finite, count_bad

VERSION = 1
LATENT_KINDS = (".safetensors",)


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentFile:
    """A latent in the VAE's raw space, and where it came from.

    Attributes:
        latent: [B,C,H,W], [B,C,T,H,W] or, of sound, [B,C,L]; on the meta device where only the header was read.
        vae: name of the VAE that made it and that decodes it.
        vae_hash: its weights' hash; None where unknown.
        scale, shift: per channel or one for all; None where the VAE has none.
        ratio: pixels per latent value, (temporal, spatial).
        dtype: what the VAE computed in, such as ``float32``.
        width, height: of the source, in pixels, before padding; of sound its samples, and 1.
        frames: of the source, before padding; None for a picture.
        fps: frames per second of the source; None for a picture.
        padding: what was added to the source, in pixels and frames per side; any JSON object.
        alpha: [B,1,H,W] in 0..1, of the source before padding; None where there is none.
        background: the colour that the source was laid over; None where it had no alpha.
        sound: float32 [C,L] in -1..1, of the clip that the frames are from, for as long as they
            are shown; None where there is none.
        sound_rate: samples a second, of `sound` or of a latent of sound.
        version: of the file format; later ones only add keys.
    """

    latent: torch.Tensor
    vae: str
    ratio: tuple[int, ...]
    dtype: str
    width: int
    height: int
    vae_hash: str | None = None
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None
    frames: int | None = None
    fps: Fraction | None = None
    padding: Mapping[str, Any] = field(default_factory=dict)
    alpha: torch.Tensor | None = None
    background: Colour | None = None
    sound: torch.Tensor | None = None
    sound_rate: int | None = None
    version: int = VERSION


def save_latent(path: Path, file: LatentFile) -> None:
    """Write `file`, whole or not at all; the same content gives the same bytes.

    Raises `JobFailed` on NaN or infinite values, `InputError` where the file cannot be written.
    """
    check_writable(path, LATENT_KINDS)
    check_finite(file.latent, goal=path)
    tensors = {"latent": file.latent, "alpha": file.alpha, "sound": file.sound}
    data = _in_order(
        save(
            {k: v.detach().to("cpu").contiguous() for k, v in tensors.items() if v is not None},
            metadata=_to_text(file),
        )
    )
    with whole_file(path, needs=len(data)) as temporary:
        temporary.write_bytes(data)


def load_latent(path: Path) -> LatentFile:
    """Read a latent onto the host.

    Raises `InputError` where the file is no safetensors file, is cut off, holds no tensor
    `latent`, says too little about it, or holds NaN or infinite values.
    """
    with _opened(path) as handle:
        tensors = {name: handle.get_tensor(name).clone() for name in _present(handle)}
        file = _from_text(path, handle.metadata(), tensors)
    bad = count_bad(file.latent)
    if bad:
        raise InputError(
            f"Cannot use {path}: {bad} of {file.latent.numel()} values are NaN or infinite; "
            "encode it anew."
        )
    return file


def probe_latent(path: Path) -> LatentFile:
    """Like `load_latent`, but the tensors are on the meta device: shape and dtype, no data."""
    with _opened(path) as handle:
        tensors = {}
        for name in _present(handle):
            part = handle.get_slice(name)
            tensors[name] = torch.empty(part.get_shape(), dtype=part[:0].dtype, device="meta")
        return _from_text(path, handle.metadata(), tensors)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file that holds the tensor `latent` and its metadata."""
    check_readable(path)
    try:
        with safe_open(str(path), framework="pt") as handle:
            names = sorted(handle.keys())
            if "latent" not in names:
                found = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
                raise InputError(
                    f"Cannot read {path} as a latent: it holds no tensor `latent`, but: {found}."
                )
            yield handle
    except SafetensorError as error:
        raise InputError(
            f"Cannot read {path} as a latent: it is no whole safetensors file ({error})."
        ) from error


def _present(handle: Any) -> list[str]:
    there = set(handle.keys())
    return [name for name in ("latent", "alpha", "sound") if name in there]


def _to_text(file: LatentFile) -> dict[str, str]:
    """Metadata of safetensors are strings; what is None is left out."""
    values = {
        "version": VERSION,
        "vae": file.vae,
        "vae_hash": file.vae_hash,
        "scale": file.scale,
        "shift": file.shift,
        "ratio": file.ratio,
        "dtype": file.dtype,
        "width": file.width,
        "height": file.height,
        "frames": file.frames,
        "fps": None if file.fps is None else str(file.fps),
        "padding": dict(file.padding),
        "background": file.background,
        "sound_rate": file.sound_rate,
    }
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if value is not None
    }


def _from_text(
    path: Path, metadata: Mapping[str, str] | None, tensors: dict[str, torch.Tensor]
) -> LatentFile:
    text = metadata or {}
    try:
        return _sensible(
            LatentFile(
                latent=tensors["latent"],
                alpha=tensors.get("alpha"),
                version=int(text["version"]),
                vae=text["vae"],
                vae_hash=text.get("vae_hash"),
                scale=_floats(text.get("scale")),
                shift=_floats(text.get("shift")),
                ratio=tuple(int(value) for value in json.loads(text["ratio"])),
                dtype=text["dtype"],
                width=int(text["width"]),
                height=int(text["height"]),
                frames=int(text["frames"]) if "frames" in text else None,
                fps=Fraction(text["fps"]) if "fps" in text else None,
                padding=dict(json.loads(text.get("padding", "{}"))),
                background=_colour(text.get("background")),
                sound=tensors.get("sound"),
                sound_rate=int(text["sound_rate"]) if "sound_rate" in text else None,
            )
        )
    except KeyError as error:
        raise InputError(
            f"Cannot read {path} as a latent: its metadata lack {error}; encode it anew."
        ) from error
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"Cannot read {path} as a latent: its metadata make no sense ({error})."
        ) from error


def _sensible(file: LatentFile) -> LatentFile:
    """The same file. Raises `ValueError` on sizes and rates that nothing can have."""
    if 0 in file.latent.shape:
        raise ValueError(f"a latent of shape {tuple(file.latent.shape)} holds nothing")
    counts = {
        "width": file.width,
        "height": file.height,
        "frames": file.frames,
        "fps": file.fps,
        "sound_rate": file.sound_rate,
    }
    for name, value in counts.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}")
    if file.alpha is not None and file.alpha.shape[1:] != (1, file.height, file.width):
        raise ValueError(f"alpha of shape {tuple(file.alpha.shape)} does not cover the picture")
    if file.sound is not None and (file.sound.dim() != 2 or file.sound_rate is None):
        raise ValueError(f"sound of shape {tuple(file.sound.shape)} has channels and a rate")
    return file


def _floats(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else tuple(float(value) for value in json.loads(text))


def _colour(text: str | None) -> Colour | None:
    if text is None:
        return None
    red, green, blue = (float(value) for value in json.loads(text))
    return (red, green, blue)


def _in_order(data: bytes) -> bytes:
    """The same safetensors file with its header's keys in order; the writer's are in none."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]
