"""Small files made for the tests: pictures, films, and films with a few patched bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image


def grey_frames(count: int, width: int, height: int) -> np.ndarray:
    """Frames [T,H,W,3] that can be told apart: frame k is grey of value 8k, modulo 256."""
    values = (8 * np.arange(count) % 256).astype(np.uint8)
    return np.broadcast_to(values[:, None, None, None], (count, height, width, 3)).copy()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random uint8 values, which no codec makes small."""
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def write_film(
    path: Path,
    frames: np.ndarray,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    rate: int = 30,
    times_ms: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    muxer: dict[str, str] | None = None,
    sound: bool = False,
) -> Path:
    """Write frames [T,H,W,3|4] as a film; `times_ms` gives presentation times."""
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream: Any = container.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        base = Fraction(1, 1000) if times_ms is not None else Fraction(1, rate)
        stream.codec_context.time_base = base
        audio: Any = container.add_stream("aac", rate=48000) if sound else None
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(
                pixels, format="rgb24" if pixels.shape[2] == 3 else "rgba"
            )
            frame.pts = index if times_ms is None else times_ms[index]
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if audio is not None:
            silence = np.zeros((1, 1024), np.float32)
            block = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
            block.sample_rate, block.pts = 48000, 0
            container.mux(audio.encode(block))
            container.mux(audio.encode())
    return path


def patch_matrix(path: Path, a: int, b: int, c: int, d: int) -> Path:
    """Overwrite the display matrix in the version-0 `tkhd` box of an MP4."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    data[at : at + 36] = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def cut(path: Path, share: float) -> Path:
    """Cut a file to the first `share` of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def write_deep_png(path: Path, samples: np.ndarray, *, extra: bytes = b"") -> Path:
    """Write samples [H,W,1..4] as a PNG with 16 bits each; `extra` chunks precede the pixels."""
    height, width, channels = samples.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path


def chunk(name: bytes, data: bytes) -> bytes:
    """One PNG chunk with its length and check sum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def write_patch_gif(path: Path, *, frames: int = 5, delay_ms: int = 80) -> Path:
    """A GIF 32x24 whose later frames store only an 8x8 patch that moves 5 columns a frame."""
    pictures = []
    for index in range(frames):
        picture = Image.new("RGB", (32, 24), (0, 0, 200))
        picture.paste((250, 0, 0), (5 * index, 8, 5 * index + 8, 16))
        pictures.append(picture)
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=delay_ms, loop=0, optimize=True
    )
    return path
