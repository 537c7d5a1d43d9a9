"""Opens films (MP4, MOV, MKV, WebM, AVI …) with PyAV."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import av
from av.stream import Disposition
from av.video.reformatter import ColorTrc

from tightfit.errors import InputError
from tightfit.media.colours import Painter, has_alpha
from tightfit.media.containers import open_container
from tightfit.media.lengths import cut_off, is_cut_off
from tightfit.media.shots import Pixels, Shot, Source
from tightfit.media.turn import UPRIGHT, Turn, from_matrix

# Without these lists FFmpeg also "plays" text files, and playlists that name other files.
_LIMITS = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv",
}
_DECODERS = min(8, os.cpu_count() or 1)
"""Threads of the decoder. It gives no frame before each of them has one, so more cost time."""
_PICTURE_BRANDS = {"heic", "heix", "mif1", "avif"}
_HDR = {int(ColorTrc.SMPTE2084), int(ColorTrc.ARIB_STD_B67)}


def comment_of(path: Path) -> str:
    """What stands in the file's metadata about it. Raises `InputError` where it is no film."""
    try:
        with open_container(path, _LIMITS) as container:
            return str(container.metadata.get("comment") or container.metadata.get("COMMENT") or "")
    except av.error.FFmpegError as error:
        raise InputError(_unreadable(path)) from error


@contextmanager
def open_film(path: Path) -> Iterator[Source]:
    """Open a film and decode its first frame.

    Raises `InputError` where the file is no film, holds no picture stream, or is cut off before
    the first frame.
    """
    try:
        container = open_container(path, _LIMITS)
    except av.error.FFmpegError as error:
        raise InputError(_unreadable(path)) from error
    with container:
        stream = _picture_stream(container, path)
        with closing(_frames(container, stream, path)) as frames:
            try:
                first = next(frames)
            except (av.error.FFmpegError, StopIteration) as error:
                raise InputError(
                    f"Cannot read {path}: no frame could be decoded; it is cut off or damaged."
                ) from error
            yield _source(container, stream, first, frames, path)


def _unreadable(path: Path) -> str:
    if is_cut_off(path):
        return f"Cannot read {path}: the film is cut off and no frame could be read; get it anew."
    return (
        f"Cannot read {path}: it is neither a picture (PNG, JPEG, WebP, GIF) nor a film "
        "(MP4, MOV, MKV, WebM, AVI) that can be read, or it is cut off; get it anew or convert it."
    )


def _picture_stream(container: Any, path: Path) -> Any:
    if container.metadata.get("major_brand") in _PICTURE_BRANDS:
        raise InputError(f"Cannot read {path}: HEIC and AVIF are not read; convert it to PNG.")
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            stream.thread_type = "AUTO"
            stream.thread_count = _DECODERS
            return stream
    raise InputError(f"Cannot read {path}: it holds no moving picture; give a film or a picture.")


def _frames(container: Any, stream: Any, path: Path) -> Generator[Any, None, None]:
    """Frames in order of showing."""
    if not _hides_alpha(stream):
        given = sent = 0
        for packet in container.demux(stream):
            sent += bool(packet.size) and not packet.is_discard
            for frame in packet.decode():
                given += 1
                yield frame
        if given < sent:
            _decode_alone(path, stream.index)
        return
    # FFmpeg's own VP8 and VP9 decoders drop the alpha plane of a WebM; libvpx keeps it.
    codec = "libvpx-vp9" if stream.codec_context.name == "vp9" else "libvpx"
    decoder = av.CodecContext.create(codec, "r")
    decoder.extradata = stream.codec_context.extradata
    for packet in container.demux(stream):
        yield from decoder.decode(packet)


def _decode_alone(path: Path, index: int) -> None:
    """Raise what is wrong with the last frames: decoders of several threads end there in silence.

    Where nothing is, packets without a frame of their own are how the codec works.
    """
    with open_container(path, _LIMITS) as container:
        stream = container.streams[index]
        stream.thread_count = 1
        for _ in container.decode(stream):
            pass


def _hides_alpha(stream: Any) -> bool:
    tags = {key.lower(): value for key, value in stream.metadata.items()}
    return tags.get("alpha_mode") == "1" and stream.codec_context.name in {"vp8", "vp9"}


def _source(container: Any, stream: Any, first: Any, frames: Iterator[Any], path: Path) -> Source:
    turn, notes = _turn(first)
    if first.color_trc in _HDR:
        notes.append("read HDR colours without tone mapping")
    if stream.sample_aspect_ratio not in (None, 0, 1):
        notes.append(f"left pixels of shape {stream.sample_aspect_ratio} as they are stored")
    width, height = turn.size(first.width, first.height)
    rates = (stream.average_rate, stream.guessed_rate, stream.base_rate)
    return Source(
        width=width,
        height=height,
        frames=stream.frames or None,
        rates=tuple(dict.fromkeys(rate for rate in rates if rate)),
        grain=stream.time_base,
        has_alpha=has_alpha(first),
        has_sound=bool(container.streams.audio),
        shots=partial(_shots, chain([first], frames), turn, path),
        notes=tuple(notes),
        origin=Fraction() if first.pts is None else first.pts * first.time_base,
    )


def _turn(frame: Any) -> tuple[Turn, list[str]]:
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return UPRIGHT, []
    turn = from_matrix(struct.unpack("=9i", bytes(data)[:36]))
    if turn is None:
        return UPRIGHT, [f"left out a turn by {frame.rotation} degrees"]
    return turn, []


def _shots(frames: Iterator[Any], turn: Turn, path: Path) -> Iterator[Shot]:
    painters = threading.local()
    first = origin = None
    time = length = Fraction()
    count = 0
    while True:
        try:
            frame = next(frames, None)
        except av.error.FFmpegError as error:
            raise cut_off(path, count) from error
        if frame is None:
            break
        first = first or frame
        if (frame.width, frame.height) != (first.width, first.height):
            raise InputError(
                f"Cannot read {path}: frame {count} is {frame.width}x{frame.height}, the first is "
                f"{first.width}x{first.height}; use --frames to choose frames of one size."
            )
        if frame.is_corrupt:
            raise cut_off(path, count)
        time += length
        if frame.pts is not None:
            stamp = frame.pts * frame.time_base
            origin = stamp - time if origin is None else origin
            time = stamp - origin
        length = (frame.duration or 0) * frame.time_base
        yield Shot(time, length or None, partial(_pixels, frame, turn, painters, path))
        count += 1
    if is_cut_off(path):
        raise cut_off(path, count)


def _pixels(frame: Any, turn: Turn, painters: threading.local, path: Path) -> Pixels:
    if not hasattr(painters, "own"):
        painters.own = Painter()
    try:
        return turn.apply(painters.own.paint(frame))
    except av.error.FFmpegError as error:
        raise InputError(
            f"Cannot read {path}: nothing converts its colours ({frame.format.name}, matrix "
            f"{frame.colorspace}) to RGB; convert it to BT.709 first."
        ) from error
