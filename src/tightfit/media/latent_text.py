"""What is written beside a latent, as the texts that safetensors keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.media.latents import FurtherLatent, LatentFile

_LONGEST = 4300
"""Digits of a number: beyond that, Python itself refuses to read one."""


def to_text(file: LatentFile, *, version: int) -> dict[str, str]:
    """The metadata of `file`; what is None is left out."""
    values = {
        "version": version,
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
        "streams": {name: _stream(each) for name, each in file.streams.items()} or None,
        "batch_index": file.batch_index,
        "source": dict(file.source) or None,
    }
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=key == "source")
        for key, value in values.items()
        if value is not None
    }


def from_text(text: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `LatentFile`, but the tensors; of ``streams``, what is said of each by name.

    Raises `KeyError` for what has to be there and is not, `ValueError` and the like for what makes
    no sense.
    """
    return {
        "version": int(text["version"]),
        "vae": text["vae"],
        "vae_hash": text.get("vae_hash"),
        "scale": _floats(_json(text, "scale")),
        "shift": _floats(_json(text, "shift")),
        "ratio": _whole(json.loads(text["ratio"])),
        "dtype": text["dtype"],
        "width": int(text["width"]),
        "height": int(text["height"]),
        "frames": int(text["frames"]) if "frames" in text else None,
        "fps": _rate(text["fps"]) if "fps" in text else None,
        "padding": dict(json.loads(text.get("padding", "{}"))),
        "background": _colour(_json(text, "background")),
        "sound_rate": int(text["sound_rate"]) if "sound_rate" in text else None,
        "streams": {name: _told(said) for name, said in dict(_json(text, "streams") or {}).items()},
        "batch_index": _whole(_json(text, "batch_index")),
        "source": dict(_json(text, "source") or {}),
    }


def _stream(stream: FurtherLatent) -> dict[str, Any]:
    values = {
        "vae": stream.vae,
        "vae_hash": stream.vae_hash,
        "scale": stream.scale,
        "shift": stream.shift,
        "ratio": stream.ratio,
        "dtype": stream.dtype,
    }
    return {key: value for key, value in values.items() if value is not None}


def _told(said: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a `FurtherLatent`."""
    return {
        "vae": _text(said.get("vae")),
        "vae_hash": _text(said.get("vae_hash")),
        "scale": _floats(said.get("scale")),
        "shift": _floats(said.get("shift")),
        "ratio": _whole(said.get("ratio")),
        "dtype": _text(said.get("dtype")),
    }


def _json(text: Mapping[str, str], key: str) -> Any:
    return json.loads(text[key]) if key in text else None


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _floats(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)


def _whole(values: Any) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)


def _rate(text: str) -> Fraction:
    if "e" in text.lower() or len(text) > _LONGEST:  # 1e999999999 would be spelt out
        raise ValueError(f"fps is {text[:20]}")
    return Fraction(text)


def _colour(values: Any) -> tuple[float, float, float] | None:
    if values is None:
        return None
    red, green, blue = (float(value) for value in values)
    return (red, green, blue)
