"""Animated PNG files with 16 bits a sample."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tightfit.errors import InputError
from tightfit.media.clip import read_clip
from tightfit.media.deep_png import SIGNATURE, framed
from tightfit.media.outputs import PLAIN, Terms, check_frames, open_frames

from .makers import cut

KINDS = {1: 0, 2: 4, 3: 2, 4: 6}
Patch = tuple[np.ndarray, int, int, int, int]
"""Samples [H,W,C], left, top, what becomes of them, and whether they are laid over."""


def apng(path: Path, patches: list[Patch], *, lead: bytes = b"") -> Path:
    """An animation of uint16 patches, of which the first is as large as the picture."""
    height, width, channels = patches[0][0].shape
    head = struct.pack(">IIBBBBB", width, height, 16, KINDS[channels], 0, 0, 0)
    data = SIGNATURE + framed(b"IHDR", head) + lead
    data += framed(b"acTL", struct.pack(">II", len(patches), 0))
    number = 0
    for at, (samples, left, top, dispose, blend) in enumerate(patches):
        high, wide, _ = samples.shape
        control = struct.pack(">IIIIIHHBB", number, wide, high, left, top, 1, 25, dispose, blend)
        rows = samples.astype(">u2").view(np.uint8).reshape(high, -1)
        packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
        data += framed(b"fcTL", control)
        number += 1
        if at:
            data += framed(b"fdAT", struct.pack(">I", number) + packed)
            number += 1
        else:
            data += framed(b"IDAT", packed)
    path.write_bytes(data + framed(b"IEND", b""))
    return path


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 65536, shape).astype(np.uint16)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_frames_are_read_in_full(tmp_path: Path, channels: int) -> None:
    """Grey and colour, with alpha and without; at the rate that the file says."""
    stored = [noise(9, 12, channels, seed=at) for at in range(3)]
    path = apng(tmp_path / "a.png", [(each, 0, 0, 0, 0) for each in stored])
    clip = read_clip(path, keep_alpha=True, background=(0.0, 0.0, 0.0))
    assert (clip.pixels.dtype, clip.fps) == (torch.uint16, 25)
    values = np.stack(stored).transpose(0, 3, 1, 2)
    if channels % 2 == 0:
        assert clip.alpha is not None
        assert np.array_equal(clip.alpha.numpy(), values[:, -1:])
        values = values[:, :-1] * (values[:, -1:].astype(np.float64) / 65535)
    else:
        assert clip.alpha is None
    off = np.abs(clip.pixels.numpy() - np.broadcast_to(values, clip.pixels.shape).astype(float))
    assert off.max() <= (1 if channels % 2 == 0 else 0)


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize(("dispose", "blend"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
def test_parts_are_drawn_over_what_was_there(
    tmp_path: Path, channels: int, dispose: int, blend: int
) -> None:
    """As Pillow draws them with 8 bits, to a step or two; what is laid over and taken back again it
    leaves there (FFmpeg does not)."""
    patches: list[Patch] = [(noise(9, 12, channels), 0, 0, 0, 0)]
    for at, (left, top, wide, high) in enumerate([(2, 1, 5, 6), (0, 3, 12, 2), (7, 0, 3, 9)]):
        part = noise(high, wide, channels, seed=at + 1)
        if channels % 2 == 0:
            part[..., -1] = 65535  # of what is half transparent, Pillow mixes the alpha, too
            part[::2, :, -1] = 0
        patches.append((part, left, top, dispose, blend))
    path = apng(tmp_path / "a.png", patches)
    clip = read_clip(path, keep_alpha=True, background=(0.0, 0.0, 0.0))
    with Image.open(path) as image:
        for at, frame in enumerate(clip.pixels.numpy()):
            image.seek(at)
            plain = np.asarray(image.convert("RGBA")).astype(np.float64)
            seen = plain[:, :, :3] * plain[:, :, 3:] / 255
            assert np.abs(frame.transpose(1, 2, 0) / 257 - seen).max() < 2.5


def test_what_shows_half_through_is_mixed(tmp_path: Path) -> None:
    """Over an opaque frame, half of each; the result is opaque."""
    under, drawn = noise(4, 6, 4), noise(4, 6, 4, seed=1)
    under[..., 3], drawn[..., 3] = 65535, 32768
    path = apng(tmp_path / "a.png", [(under, 0, 0, 0, 0), (drawn, 0, 0, 0, 1)])
    clip = read_clip(path, keep_alpha=True)
    mean = (under[..., :3].astype(float) * 32767 + drawn[..., :3].astype(float) * 32768) / 65535
    assert np.abs(clip.pixels[1].numpy().transpose(1, 2, 0) - mean).max() <= 1
    assert clip.alpha is None or bool((clip.alpha.int() == 65535).all())


@pytest.mark.parametrize("alpha", [False, True])
def test_what_is_written_with_16_bits_comes_back(tmp_path: Path, alpha: bool) -> None:
    """Bit for bit, also where a frame repeats the one before it but for a part."""
    frames = torch.from_numpy(noise(5, 4 if alpha else 3, 20, 30).astype(np.int32))
    frames[2] = frames[1]
    frames[3] = frames[2]
    frames[3, :, 3:5, 4:9] = 7
    path = tmp_path / "a.apng"
    terms = Terms(bits=16)
    check_frames(path, terms, frames=5, alpha=alpha, what="it")
    with open_frames(
        path, width=30, height=20, frames=5, fps=Fraction(25), alpha=alpha, terms=terms
    ) as writer:
        writer.write(frames.to(torch.uint16))
    clip = read_clip(path, keep_alpha=alpha, background=(0.0, 0.0, 0.0))
    if not alpha:
        assert torch.equal(clip.pixels.int(), frames)
        return
    assert clip.alpha is not None
    assert torch.equal(clip.alpha.int(), frames[:, 3:])
    assert PLAIN.bits == 8


def test_damaged_ones_are_refused_by_name(tmp_path: Path) -> None:
    """Cut off, or with a frame beyond the picture."""
    stored = noise(9, 12, 3)
    path = apng(tmp_path / "a.png", [(stored, 0, 0, 0, 0)] * 3)
    with pytest.raises(InputError, match=r"a\.png"):
        read_clip(cut(path, 0.7))
    beyond = apng(tmp_path / "b.png", [(stored, 0, 0, 0, 0), (stored[:4, :4], 10, 0, 0, 0)])
    with pytest.raises(InputError, match=r"b\.png"):
        read_clip(beyond)
