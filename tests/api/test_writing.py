"""Frames that go to their file while they are decoded."""

from __future__ import annotations

import resource
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tightfit.api import writing
from tightfit.api.writing import Target
from tightfit.errors import InputError, JobFailed
from tightfit.media.clip import read_clip
from tightfit.media.clip_writer import ClipWriter
from tightfit.media.latents import LatentFile
from tightfit.media.outputs import Terms
from tightfit.run.vae import Traits, Vae
from tightfit.testing import toy_vae
from tightfit.testing.toys import wrap_toy
from tightfit.units import MIB

CARD = "virtual:1GiB"


def clip_latent(frames: int = 22, batch: int = 1) -> LatentFile:
    """Of 95x78, padded to 96x80 and 25 frames."""
    return LatentFile(
        latent=torch.randn(batch, 16, 7, 10, 12) / 2,
        vae="V3",
        ratio=(4, 8),
        dtype="float32",
        width=95,
        height=78,
        frames=frames,
        fps=Fraction(24),
    )


def steps(frames: torch.Tensor) -> torch.Tensor:
    """As a file of 8 bits has them."""
    return (frames * 255).round().to(torch.uint8)


@pytest.mark.parametrize("terms", [{}, {"tile": "9x80x96"}, {"tile": "64"}], ids=str)
def test_a_clip_in_a_file_is_the_clip_in_memory(tmp_path: Path, terms: dict[str, Any]) -> None:
    """Whole, in pieces of time and in tiles of space; without the padding."""
    vae, out = toy_vae("V3", width=8), tmp_path / "a.mkv"
    whole = tightfit.decode(clip := clip_latent(), vae=vae, card=CARD, **terms)
    done = tightfit.decode(clip, vae=vae, card=CARD, out=out, **terms)
    assert [a["rung"] for a in done.report.attempts] == [a["rung"] for a in whole.report.attempts]
    assert done.value.pixels.shape == (0, 3, 78, 95)
    assert done.value.fps == 24
    assert done.report.output["frames"] == 22
    assert torch.equal(read_clip(out).pixels, steps(whole.value.pixels))
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a.mkv"]


@pytest.mark.parametrize("terms", [{}, {"tile": "9x80x96"}], ids=str)
def test_several_clips_of_a_batch_follow_each_other(tmp_path: Path, terms: dict[str, Any]) -> None:
    """Each without its padding."""
    vae, out = toy_vae("V3", width=8), tmp_path / "a.mkv"
    clips = clip_latent(batch=2)
    expected = tightfit.decode(clips, vae=vae, card=CARD, **terms).value.pixels
    tightfit.decode(clips, vae=vae, card=CARD, out=out, **terms)
    assert expected.shape[0] == 44
    assert torch.equal(read_clip(out).pixels, steps(expected))


def test_pieces_of_time_are_written_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a clip of any length takes the memory of a piece."""
    order: list[str] = []
    vae = toy_vae("V3", width=8)
    onward, take = vae.onward, writing.FrameSink.take

    def making(*given: Any) -> torch.Tensor:
        order.append("made")
        assert onward is not None
        return onward(*given)

    def taking(sink: Any, samples: torch.Tensor) -> None:
        order.append("written")
        take(sink, samples)

    monkeypatch.setattr(writing.FrameSink, "take", taking)
    out = tmp_path / "a.mkv"
    watched = replace(vae, onward=making)
    tightfit.decode(clip_latent(), vae=watched, card=CARD, tile="9x80x96", out=out)
    assert order == ["made", "written"] * (len(order) // 2)
    assert len(order) > 2


def test_large_sums_of_tiles_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same frames, and nothing is left beside the output."""
    vae, out = toy_vae("V3", width=8), tmp_path / "a.mkv"
    expected = tightfit.decode(clip := clip_latent(), vae=vae, card=CARD, tile="64").value.pixels
    monkeypatch.setattr(writing, "_IN_MEMORY", 0)
    tightfit.decode(clip, vae=vae, card=CARD, tile="64", out=out)
    assert torch.equal(read_clip(out).pixels, steps(expected))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["a.mkv"]


def test_a_try_that_fails_leaves_none_of_its_frames(tmp_path: Path) -> None:
    """Pictures of which some are written when memory ends: the next try begins the file anew."""
    vae = toy_vae("V2", width=8)
    calls = 0

    def failing(latent: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("for the test")
        return vae.decode(latent)

    latent = torch.randn(30, 4, 4, 5)
    expected = tightfit.decode(latent, vae=vae, card=CARD).value.pixels
    out = tmp_path / "a.mkv"
    broken = replace(vae, decode=failing)
    done = tightfit.decode(latent, vae=broken, card=CARD, estimate=False, out=out)
    assert next(a["outcome"] for a in done.report.attempts if a["stage"] == "decode") == "oom"
    pixels = read_clip(out).pixels
    assert pixels.shape[0] == 30
    assert (pixels.int() - steps(expected).int()).abs().max() <= 1


def not_finite(vae: Vae) -> Vae:
    """The same, with one NaN in what it decodes."""

    def decode(latent: torch.Tensor) -> torch.Tensor:
        made = vae.decode(latent)
        made.view(-1)[5] = float("nan")
        return made

    return replace(vae, decode=decode)


def test_c01_frames_of_nan_leave_the_old_file(tmp_path: Path) -> None:
    """Or, where that is asked for, they are black there, and counted."""
    vae, out = not_finite(toy_vae("V2", width=8)), tmp_path / "a.mkv"
    out.write_bytes(b"old")
    latent = torch.randn(3, 4, 4, 5)
    with pytest.raises(JobFailed, match="NaN or infinite"):
        tightfit.decode(latent, vae=vae, card=CARD, out=out)
    assert out.read_bytes() == b"old"
    target = Target(out, Terms(), allow_nan=True)
    done = tightfit.decode(latent, vae=vae, card=CARD, out=target)
    assert "1 values that are not finite were written as black" in done.report.adjusted
    assert read_clip(out).pixels[0, 0, 0, 5] == 0


def test_alpha_goes_with_each_frame(tmp_path: Path) -> None:
    """Taken out of the background, frame by frame."""
    vae, out = toy_vae("V3", width=8), tmp_path / "a.mkv"
    alpha = torch.rand(22, 1, 78, 95)
    latent = replace(clip_latent(), alpha=alpha, background=(1.0, 1.0, 1.0))
    expected = tightfit.decode(latent, vae=vae, card=CARD, tile="9x80x96").value.pixels
    tightfit.decode(latent, vae=vae, card=CARD, tile="9x80x96", out=out)
    clip = read_clip(out, keep_alpha=True)
    assert clip.alpha is not None
    assert torch.equal(clip.alpha, steps(expected[:, 3:]))


class Pattern(torch.nn.Module):
    """Makes large frames of small latents at once: all that costs is to keep them."""

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        return latent.repeat_interleave(8, -1).repeat_interleave(8, -2)

    encode = decode


def test_a_clip_of_3600_frames_never_lies_in_memory(tmp_path: Path) -> None:
    """100 MB as floats, of which a decode into memory makes several copies; here some frames."""
    vae = wrap_toy(Pattern(), Traits("pattern", 8, channels=3, latent_channels=3))
    out = tmp_path / "a.mkv"
    tightfit.decode(torch.rand(64, 3, 6, 6), vae=vae, card="cpu", out=out)
    latent = torch.rand(3600, 3, 6, 6)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = tightfit.decode(latent, vae=vae, card="cpu", out=out)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert done.report.output["frames"] == 3600
    assert grown < 48 * MIB
    assert read_clip(out, frames=slice(3599, None)).pixels.shape == (1, 3, 48, 48)


@pytest.mark.parametrize("terms", [{}, {"tile": "9x80x96"}], ids=str)
def test_what_goes_wrong_while_a_part_is_written_ends_the_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    """With the writer's error; the old file stays, no other is left, and no thread."""
    out, before = tmp_path / "a.mkv", set(threading.enumerate())
    out.write_bytes(b"old")

    def full(writer: Any, frames: torch.Tensor) -> None:
        del writer, frames
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ClipWriter, "write", full)
    with pytest.raises(InputError, match=r"a\.mkv: the disk is full"):
        tightfit.decode(clip_latent(), vae=toy_vae("V3", width=8), card=CARD, out=out, **terms)
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a.mkv"]
    assert set(threading.enumerate()) <= before


def test_frames_are_written_while_the_next_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole decode gives each step away: the last is made when the first is on its way."""
    events: list[str] = []
    write, take = ClipWriter.write, writing.FrameSink.take

    def writes(writer: Any, frames: torch.Tensor) -> None:
        events.append(threading.current_thread().name)
        write(writer, frames)

    def taking(sink: Any, samples: torch.Tensor) -> None:
        events.append("made")
        take(sink, samples)

    monkeypatch.setattr(ClipWriter, "write", writes)
    monkeypatch.setattr(writing.FrameSink, "take", taking)
    out = tmp_path / "a.mkv"
    done = tightfit.decode(clip_latent(), vae=toy_vae("V3", width=8), card=CARD, out=out)
    assert done.report.attempts[0]["rung"] == "whole"
    assert events.count("made") == 7
    assert events.count("tightfit-behind") == 7
    assert events.index("tightfit-behind") < 6
