"""Latents on disk: safetensors with the tensor `latent` and what a decode must know of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tightfit.errors import InputError
from tightfit.media import latent_text, plain_latents
from tightfit.media.background import Colour
from tightfit.media.files import check_readable, check_writable, whole_file
from tightfit.media.samples import check_finite, count_bad
from tightfit.weigh.files.safetensors_layout import Layout, read_layout

VERSION = 1
LATENT_KINDS = (".safetensors",)

_LATENT, _ALPHA, _MASK, _SOUND = "latent", "alpha", "mask", "sound"
_STREAM = "latent."
"""What stands before the names of further streams."""
_HASH = "sha256"
_CLIP_AXES = 5


@dataclass(frozen=True, eq=False, kw_only=True)
class FurtherLatent:
    """A further latent of the same source, such as its sound.

    Attributes:
        latent: [B,C,…] in the raw space of its VAE, as in `LatentFile`.
        vae, vae_hash, scale, shift, ratio, dtype: as in `LatentFile`; None where unknown.
    """

    latent: torch.Tensor
    vae: str | None = None
    vae_hash: str | None = None
    scale: tuple[float, ...] | None = None
    shift: tuple[float, ...] | None = None
    ratio: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentFile:
    """A latent in the VAE's raw space, and where it came from.

    Attributes:
        latent: [B,C,H,W], [B,C,T,H,W] or, of sound, [B,C,L]; on the meta device where only the
            header was read.
        vae: name of the VAE that made it and that decodes it; None where another tool wrote the
            file and does not say.
        vae_hash: its weights' hash; None where unknown.
        scale, shift: per channel or one for all; None where the VAE has none.
        ratio: pixels per latent value, (temporal, spatial); None where unknown.
        dtype: what the VAE computed in, such as ``float32``; None where unknown.
        width, height: of the source, in pixels, before padding; of sound its samples, and 1; None
            where unknown.
        frames: of the source, before padding; None for a picture, or where unknown.
        fps: frames per second of the source; None for a picture, or where unknown.
        padding: what was added to the source, in pixels and frames per side; any JSON object.
        alpha: [B,1,H,W] in 0..1, of the source before padding; None where there is none.
        background: the colour that the source was laid over; None where it had no alpha.
        sound: float32 [C,L] in -1..1, of the clip that the frames are from, for as long as they
            are shown; None where there is none.
        sound_rate: samples a second, of `sound` or of a latent of sound.
        streams: further latents of the same source by name, such as ``audio``.
        mask: where noise is added, [B,…] of any shape and dtype; None where there is none.
        batch_index: which seed of a batch each of the B items has; None where that was not kept.
        source: of what and how it was made, any JSON object: the source's hash, the settings.
        version: of the file format; later ones only add keys.
        layout: ``tightfit``, or the name of the tensor in another tool's file.
    """

    latent: torch.Tensor
    vae: str | None
    ratio: tuple[int, ...] | None
    dtype: str | None
    width: int | None
    height: int | None
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
    streams: Mapping[str, FurtherLatent] = field(default_factory=dict)
    mask: torch.Tensor | None = None
    batch_index: tuple[int, ...] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION
    layout: str = "tightfit"

    @property
    def pictures(self) -> int:
        """How many it holds; at least as many latent frames, in a file that does not say more."""
        if self.width is None and self.latent.dim() == _CLIP_AXES:
            return self.latent.shape[0] * self.latent.shape[2]
        return self.frames or self.latent.shape[0]


def save_latent(path: Path, file: LatentFile) -> None:
    """Write `file`, whole or not at all; the same content gives the same bytes.

    Tensors keep their dtypes. A hash of all that is written goes with it, which `load_latent`
    checks. Raises `JobFailed` on NaN or infinite values, `InputError` where the file cannot be
    written.
    """
    check_writable(path, LATENT_KINDS)
    tensors = {
        name: tensor.detach().to("cpu").contiguous() for name, tensor in _tensors(file).items()
    }
    for tensor in tensors.values():
        check_finite(tensor, goal=path)
    text = latent_text.to_text(file, version=VERSION)
    data = _in_order(save(tensors, metadata={**text, _HASH: content_hash(tensors, text)}))
    with whole_file(path, needs=len(data)) as temporary:
        temporary.write_bytes(data)


def load_latent(path: Path) -> LatentFile:
    """Read a latent onto the host; of other tools' files see `tightfit.media.plain_latents`.

    Raises `InputError` where the file is no safetensors file, is cut off, holds no latent, says
    too little about it, is not what its hash says, or holds NaN or infinite values.
    """
    with _opened(path) as (handle, layout):
        text = layout.metadata
        tensors = {e.name: handle.get_tensor(e.name).clone() for e in layout.entries}
        if _HASH in text and content_hash(tensors, text) != text[_HASH]:
            raise InputError(
                f"Cannot use {path}: its content is not what its hash says, so it was damaged or "
                "changed after it was written; encode it anew."
            )
        file = _file(path, text, tensors)
    for name, tensor in _tensors(file).items():
        bad = count_bad(tensor)
        if bad:
            which = "" if name == _LATENT else f" of `{name}`"
            raise InputError(
                f"Cannot use {path}: {bad} of {tensor.numel()} values{which} are NaN or infinite; "
                "encode it anew."
            )
    return file


def probe_latent(path: Path) -> LatentFile:
    """Like `load_latent`, but the tensors are on the meta device: shape and dtype, no data."""
    with _opened(path) as (handle, layout):
        tensors = {}
        for entry in layout.entries:
            dtype = handle.get_slice(entry.name)[:0].dtype if entry.shape else torch.float32
            tensors[entry.name] = torch.empty(entry.shape, dtype=dtype, device="meta")
        return _file(path, layout.metadata, tensors)


def content_hash(tensors: Mapping[str, torch.Tensor], text: Mapping[str, str]) -> str:
    """SHA-256, in hex, over tensors on the host (name, dtype, shape, bytes) and their metadata."""
    told = {key: value for key, value in text.items() if key != _HASH}
    digest = sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Layout]]:
    """Open a file that holds a latent, and whose header goes with its size."""
    check_readable(path)
    try:
        layout = read_layout(path)
    except InputError as error:
        reason = str(error).partition(f"{path}: ")[2].rstrip(".")
        raise _no_safetensors(path, reason) from None
    names = [entry.name for entry in layout.entries]
    if _LATENT not in names and plain_latents.name_in(names) is None:
        found = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        raise InputError(
            f"Cannot read {path} as a latent: it holds no tensor `latent`, `latent_tensor` or "
            f"`samples`, but: {found or 'none'}."
        )
    try:
        with safe_open(str(path), framework="pt") as handle:
            yield handle, layout
    except (SafetensorError, OSError, AttributeError) as error:  # a type that PyTorch lacks
        raise _no_safetensors(path, str(error)) from error


def _no_safetensors(path: Path, reason: str) -> InputError:
    return InputError(
        f"Cannot read {path} as a latent: it is no whole safetensors file ({reason})."
    )


def _tensors(file: LatentFile) -> dict[str, torch.Tensor]:
    """All tensors of `file`, under their names on the disk."""
    streams = {f"{_STREAM}{name}": stream.latent for name, stream in file.streams.items()}
    found = {_LATENT: file.latent, _ALPHA: file.alpha, _MASK: file.mask, _SOUND: file.sound}
    return {name: tensor for name, tensor in {**found, **streams}.items() if tensor is not None}


def _file(path: Path, text: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> LatentFile:
    plain = plain_latents.name_in(tensors)
    try:
        if _LATENT not in tensors and plain is not None:
            found: dict[str, Any] = plain_latents.read(tensors, plain)
            found |= dict.fromkeys(("vae", "ratio", "dtype", "width", "height"))
            return _sensible(LatentFile(layout=plain, **found))
        told = latent_text.from_text(text)
        streams = told.pop("streams")
        latents = {
            name.removeprefix(_STREAM): tensor
            for name, tensor in tensors.items()
            if name.startswith(_STREAM)
        }
        return _sensible(
            LatentFile(
                latent=tensors[_LATENT],
                alpha=tensors.get(_ALPHA),
                mask=tensors.get(_MASK),
                sound=tensors.get(_SOUND),
                streams={
                    name: FurtherLatent(latent=latent, **streams.get(name, {}))
                    for name, latent in latents.items()
                },
                **told,
            )
        )
    except KeyError as error:
        raise InputError(
            f"Cannot read {path} as a latent: its metadata lack {error}; encode it anew."
        ) from error
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise InputError(
            f"Cannot read {path} as a latent: its metadata make no sense ({error})."
        ) from error


def _sensible(file: LatentFile) -> LatentFile:
    """The same file. Raises `ValueError` on sizes and rates that nothing can have."""
    streams = [(f"stream `{name}`", each.latent) for name, each in file.streams.items()]
    for name, tensor in (("a latent", file.latent), *streams):
        if 0 in tensor.shape or tensor.dim() < 3:
            raise ValueError(f"{name} of shape {tuple(tensor.shape)} holds nothing")
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
    batch = file.latent.shape[0]
    if file.batch_index is not None and len(file.batch_index) != batch:
        raise ValueError(f"batch_index is of {len(file.batch_index)} items, the latent of {batch}")
    return file


def _in_order(data: bytes) -> bytes:
    """The same safetensors file with its header's keys in order; the writer's are in none."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]
