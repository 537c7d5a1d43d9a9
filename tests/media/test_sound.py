"""Sound, read and written."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from tightfit.errors import InputError, JobFailed
from tightfit.media.clip import read_clip
from tightfit.media.clip_writer import ClipWriter
from tightfit.media.sound import Sound, SoundPart, has_sound_alone, read_sound, write_sound

from .makers import cut, grey_frames


def tone(seconds: float = 1.0, rate: int = 44100, channels: int = 2) -> Sound:
    """Tones that rise, each sample a whole number of 16-bit steps."""
    time = torch.arange(round(seconds * rate)) / rate
    waves = [torch.sin(time * (300 + 200 * at + 150 * time)) * 0.7 for at in range(channels)]
    return Sound((torch.stack(waves) * 2**15).round() / 2**15, rate)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_written_sound_reads_back_bit_for_bit(tmp_path: Path, name: str, channels: int) -> None:
    """24 bits hold more than 16."""
    sound = tone(0.3, 48000, channels)
    write_sound(tmp_path / name, sound)
    back = read_sound(tmp_path / name)
    assert torch.equal(back.samples, sound.samples)
    assert (back.rate, back.notes, back.seconds) == (48000, (), Fraction(3, 10))


@pytest.mark.parametrize(("start", "length"), [("0", "1/3"), ("1/4", "1/2"), ("0.1", "0.0417")])
def test_a_part_has_its_samples_and_no_others(tmp_path: Path, start: str, length: str) -> None:
    """From the sample that is heard at its start."""
    write_sound(tmp_path / "a.flac", tone())
    part = SoundPart(Fraction(start), Fraction(length))
    first, count = round(part.start * 44100), round(Fraction(length) * 44100)
    back = read_sound(tmp_path / "a.flac", part).samples
    assert torch.equal(back, tone().samples[:, first : first + count])


def test_a_part_beyond_the_end_is_silent_there(tmp_path: Path) -> None:
    """It has the length that was asked for; where there is nothing at all, that is said."""
    write_sound(tmp_path / "a.wav", tone())
    back = read_sound(tmp_path / "a.wav", SoundPart(Fraction(9, 10), Fraction(1)))
    assert back.samples.shape == (2, 44100)
    assert back.samples[:, :4410].abs().max() > 0.1
    assert not back.samples[:, 4410:].any()
    none = read_sound(tmp_path / "a.wav", SoundPart(Fraction(5), Fraction(1)))
    assert none.samples.shape == (2, 44100)
    assert none.notes == ("the file has no sound while these frames are shown",)


def test_another_rate_and_other_channels_are_made_and_said(tmp_path: Path) -> None:
    """A VAE takes what it was made for."""
    write_sound(tmp_path / "a.wav", tone(0.5, 48000, 1))
    back = read_sound(tmp_path / "a.wav", rate=44100, channels=2)
    assert abs(back.samples.shape[1] - 22050) <= 1
    assert torch.equal(back.samples[0], back.samples[1])
    assert back.notes == (
        "sound of 48000 samples a second resampled to 44100",
        "sound of 1 channels mixed to 2",
    )


def test_loud_sound_is_clipped_and_nan_is_refused(tmp_path: Path) -> None:
    """No sample wraps round."""
    write_sound(tmp_path / "a.wav", Sound(torch.tensor([[2.0, -2.0, 0.5]]), 8000))
    back = read_sound(tmp_path / "a.wav").samples
    assert back[0].tolist() == pytest.approx([1, -1, 0.5], abs=1e-6)
    with pytest.raises(JobFailed, match="NaN"):
        write_sound(tmp_path / "b.wav", Sound(torch.tensor([[float("nan")]]), 8000))
    assert not (tmp_path / "b.wav").exists()


def test_a_file_without_sound_is_refused(tmp_path: Path) -> None:
    """By what it is."""
    with ClipWriter(tmp_path / "a.mp4", 32, 32, Fraction(24)) as writer:
        writer.write(torch.zeros(2, 3, 32, 32))
    (tmp_path / "a.txt").write_text("la la la")
    with pytest.raises(InputError, match="holds none"):
        read_sound(tmp_path / "a.mp4")
    with pytest.raises(InputError, match="no WAV"):
        read_sound(tmp_path / "a.txt")
    with pytest.raises(InputError, match="No such file"):
        read_sound(tmp_path / "b.wav")
    assert not has_sound_alone(tmp_path / "a.mp4")
    assert not has_sound_alone(tmp_path / "a.txt")


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_sound_that_is_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    """Not shortened in silence."""
    write_sound(tmp_path / "a.wav", tone())
    with pytest.raises(InputError, match="cut off"):
        read_sound(cut(tmp_path / "a.wav", share))


@pytest.mark.parametrize(("name", "near"), [("a.mkv", 0.0), ("a.mp4", 0.03)])
@pytest.mark.parametrize("fps", [Fraction(24), Fraction(30000, 1001)])
def test_sound_of_a_film_comes_back_to_the_sample(
    tmp_path: Path, name: str, near: float, fps: Fraction
) -> None:
    """Bit for bit from an MKV; from an MP4 as AAC has it, at the same place."""
    frames = torch.from_numpy(grey_frames(25, 32, 32)).permute(0, 3, 1, 2)
    length = round(25 / fps * 48000)
    sound = tone(2, 48000)
    sound = Sound(sound.samples[:, :length], 48000)
    with ClipWriter(tmp_path / name, 32, 32, fps, sound=sound) as writer:
        writer.write(frames[:9])
        writer.write(frames[9:])
    assert writer.notes == ()
    clip = read_clip(tmp_path / name)
    assert clip.fps == fps
    assert clip.sound is not None
    assert clip.sound.length == 25 / fps
    back = read_sound(tmp_path / name, clip.sound)
    assert back.samples.shape == (2, length)
    if not near:
        assert torch.equal(back.samples, sound.samples)
    middle = slice(2000, -2000)
    error = (back.samples - sound.samples)[:, middle].pow(2).mean().sqrt()
    assert error <= near
    alone = read_sound(tmp_path / name)
    assert abs(alone.samples.shape[1] - length) <= 1024


def test_sound_longer_than_the_frames_is_cut_with_them(tmp_path: Path) -> None:
    """A film does not go on when its frames are over."""
    with ClipWriter(tmp_path / "a.mkv", 32, 32, Fraction(24), sound=tone(3, 48000)) as writer:
        writer.write(torch.zeros(12, 3, 32, 32))
    assert read_sound(tmp_path / "a.mkv").samples.shape == (2, 24000)


def test_sound_that_a_kind_cannot_hold_is_said(tmp_path: Path) -> None:
    """From the start, and the film is written without it."""
    sound = tone(1, 11111)
    assert ClipWriter(tmp_path / "a.mp4", 32, 32, Fraction(24), sound=sound).notes == (
        "left out the sound: AAC has no 11111 samples a second",
    )
    assert ClipWriter(tmp_path / "a.apng", 32, 32, Fraction(24), sound=tone()).notes == (
        "left out the sound, which a .apng does not hold",
    )


def film_with_offset(path: Path, *, video_ms: int, audio_ms: int) -> Path:
    """25 frames at 25 a second and a click of sound, each beginning at its own time."""
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=25, options={"bf": "0"})
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        video.codec_context.time_base = Fraction(1, 1000)
        audio: Any = container.add_stream("flac", rate=48000)
        audio.layout = "mono"
        for at, pixels in enumerate(grey_frames(25, 32, 32)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = video_ms + 40 * at, Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode())
        samples = np.zeros((1, 48000), np.int16)
        samples[0, 24000:] = 16384
        block = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        block.sample_rate, block.pts, block.time_base = 48000, audio_ms * 48, Fraction(1, 48000)
        container.mux(audio.encode(block))
        container.mux(audio.encode())
    return path


@pytest.mark.parametrize(("video_ms", "audio_ms"), [(0, 0), (200, 0), (0, 200)])
def test_sound_keeps_its_place_beside_the_frames(
    tmp_path: Path, video_ms: int, audio_ms: int
) -> None:
    """Whichever of the two begins first; the clock of an MKV is good for a millisecond."""
    path = film_with_offset(tmp_path / "a.mkv", video_ms=video_ms, audio_ms=audio_ms)
    clip = read_clip(path, frames=slice(5, 20))
    assert clip.sound is not None
    heard = read_sound(path, clip.sound).samples[0]
    assert len(heard) == 15 * 1920
    step = int((heard > 0.25).float().argmax())
    expected = 24000 + (audio_ms - video_ms) * 48 - 5 * 1920
    assert abs(step - expected) <= 48


def test_uneven_times_leave_the_sound_out_and_say_so(tmp_path: Path) -> None:
    """Unless frames are picked by time, which makes them even."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=30)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        video.codec_context.time_base = Fraction(1, 1000)
        audio: Any = container.add_stream("flac", rate=48000)
        audio.layout = "mono"
        for pixels, time in zip(grey_frames(6, 32, 32), [0, 33, 66, 400, 433, 900], strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(video.encode(frame))
        container.mux(video.encode())
        block = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.int16), "s16", "mono")
        block.sample_rate, block.pts, block.time_base = 48000, 0, Fraction(1, 48000)
        container.mux(audio.encode(block))
        container.mux(audio.encode())
    clip = read_clip(path)
    assert clip.sound is None
    assert "left out the sound, since frame times vary; --fps X keeps it" in clip.notes
    even = read_clip(path, fps=Fraction(10), frames=slice(2, 7))
    assert even.sound == SoundPart(Fraction(1, 5), Fraction(1, 2))
