"""What reading and writing frames adds to an encode and a decode.

    python bench/media.py                    # the true-size Wan 2.1 VAE, random weights, on cuda:0
    python bench/media.py --only encode      # under a minute
    python bench/media.py --cpu              # a narrow one and a small clip, on the host

A clip is written to a file first. Then, in turn and in one run: it is encoded from a tensor that is
in memory, and from the file; its latent is decoded to memory, and to a file. The ratio of the
medians is what files add, and whether the latents are the same is told with it; what reading and
writing take alone is what would be added if nothing else went on meanwhile. The VAE is loaded once,
before the clock starts. Eight files of the first size are encoded as a batch, beside eight encodes
from memory whose latents are saved, too: seconds for each. Last, seven frames are read of a long
clip, and of one that ends shortly after them: the same, if nothing behind them counts.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av
import torch
from provenance import machine_of, versions_of
from rows import Row, write

import tightfit
from tightfit.adapters import find_vae, load_vae
from tightfit.card import open_card
from tightfit.media.clip import parse_frames, read_clip
from tightfit.media.clip_writer import ClipWriter
from tightfit.media.latents import save_latent
from tightfit.media.outputs import open_frames
from tightfit.run.vae import Vae

_PIECE = 16
LONG, SHORT, ASKED = 600, 130, "100:113:2"
BATCH = 8
PARTS = ("encode", "batch", "decode", "read")
REHEARSED = ["13x128x128"]


def film(path: Path, frames: int, width: int, height: int) -> Path:
    """A clip with a moving pattern and fine grain: half a bit a pixel, as good films have."""
    generator = torch.Generator().manual_seed(0)
    grain = torch.randn(8, 3, height, width, generator=generator) / 100
    y = torch.linspace(0, 12, height).view(1, 1, -1, 1)
    x = torch.linspace(0, 12, width).view(1, 1, 1, -1)
    with ClipWriter(path, width, height, Fraction(16)) as writer:
        for start in range(0, frames, 8):
            at = torch.arange(start, min(start + 8, frames)).view(-1, 1, 1, 1) / 8
            shade = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1)
            waves = torch.sin(x + at + shade) * torch.cos(y - at) / 3 + 0.5
            writer.write((waves + grain[: len(at)]).clamp(0, 1))
    return path


def timed(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, in turn, so that a clock that drifts hits all; after one for warmth."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for at in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if at:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def rows_of(job: str, seconds: dict[str, list[float]]) -> list[Row]:
    """One for each way; the first is what the others are compared with."""
    least = median(next(iter(seconds.values())))
    return [
        Row(
            job,
            who,
            median(times),
            limit_seconds=least,
            all_seconds=tuple(times),
            note=f"{median(times) / least - (0 if who.endswith('alone') else 1):+.1%} of the first",
        )
        for who, times in seconds.items()
    ]


def terms_of(vae: Vae, asked: argparse.Namespace) -> dict[str, Any]:
    """Of every encode and decode."""
    return {"vae": vae, "card": asked.card, **({"vram": asked.vram} if asked.vram else {})}


def encoded(vae: Vae, path: Path, asked: argparse.Namespace, name: str) -> list[Row]:
    """An encode from memory and from the file."""
    terms, pixels = terms_of(vae, asked), read_clip(path).pixels
    one, other = (tightfit.encode(each, **terms).value.latent for each in (pixels, path))
    seconds = timed(
        {
            "from memory": lambda: tightfit.encode(pixels, **terms),
            "from the file": lambda: tightfit.encode(path, **terms),
            "reading alone": lambda: read_clip(path),
        },
        asked.rounds,
    )
    first, second, *rest = rows_of(f"encode {name}", seconds)
    return [first, replace(second, bit_equal=torch.equal(one, other)), *rest]


def batched(vae: Vae, path: Path, asked: argparse.Namespace, name: str) -> list[Row]:
    """For each of eight files: as a batch, and from memory one after the other."""
    terms, pixels = terms_of(vae, asked), read_clip(path).pixels
    folder = path.with_name("batch")
    folder.mkdir()
    files = [shutil.copy(path, folder / f"{at}{path.suffix}") for at in range(BATCH)]
    out = folder / "out"

    def from_memory() -> None:
        for at in range(BATCH):
            save_latent(folder / f"{at}.safetensors", tightfit.encode(pixels, **terms).value)

    def as_a_batch() -> None:
        shutil.rmtree(out, ignore_errors=True)
        done = tightfit.encode_all(files, out, **terms)
        assert done.count("written") == BATCH, done.summary

    seconds = timed(
        {"from memory, each saved": from_memory, f"per item of a batch of {BATCH}": as_a_batch},
        min(2, asked.rounds),
    )
    each = {who: [taken / BATCH for taken in times] for who, times in seconds.items()}
    return rows_of(f"encode {BATCH} clips of {name}", each)


def decoded(vae: Vae, path: Path, asked: argparse.Namespace, name: str) -> list[Row]:
    """A decode to memory and to a file."""
    terms = terms_of(vae, asked)
    latent = tightfit.encode(path, **terms).value
    out = path.with_name("out.mp4")
    made = tightfit.decode(latent, **terms).value

    def to_file(frames: tightfit.Frames) -> None:
        count, _, height, width = frames.pixels.shape
        with open_frames(out, width=width, height=height, frames=count, fps=frames.fps) as writer:
            for start in range(0, count, _PIECE):
                writer.write(frames.pixels[start : start + _PIECE])

    seconds = timed(
        {
            "to memory": lambda: tightfit.decode(latent, **terms),
            "to a file": lambda: tightfit.decode(latent, out=out, **terms),
            "writing alone": lambda: to_file(made),
        },
        asked.rounds,
    )
    return rows_of(f"decode {name}", seconds)


def parts(folder: Path, rounds: int) -> list[Row]:
    """Seven frames of a clip with a short tail and of one with a long tail."""
    short = film(folder / "short.mp4", SHORT, 320, 240)
    long = film(folder / "long.mp4", LONG, 320, 240)
    wanted = parse_frames(ASKED)
    seconds = timed(
        {
            f"of {SHORT}": lambda: read_clip(short, frames=wanted),
            f"of {LONG}": lambda: read_clip(long, frames=wanted),
        },
        rounds,
    )
    return rows_of(f"read frames {ASKED} of 320x240", seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each way, and write the rows where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="a narrow VAE and a small clip")
    parser.add_argument("--card", default="cuda:0")
    parser.add_argument("--vram", help="a budget; all of the card without")
    parser.add_argument("--vae", default="random:wan2.1-vae")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--sizes", nargs="+", default=["13x768x768", "81x832x480"], metavar="FRAMESxWIDTHxHEIGHT"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts; a batch is one"
    )
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    if asked.cpu:
        asked.card, asked.vae, asked.dtype = "cpu", "random:wan2.1-vae-mini", "float32"
        asked.sizes, asked.rounds = REHEARSED, 3
    vae = load_vae(find_vae(asked.vae), dtype=getattr(torch, asked.dtype))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in asked.sizes:
            frames, width, height = (int(part) for part in size.split("x"))
            path = film(folder / f"{size}.mp4", frames, width, height)
            name = f"{size} with {asked.vae}, {asked.dtype}"
            if "encode" in asked.only:
                rows += encoded(vae, path, asked, name)
            if "batch" in asked.only and size == asked.sizes[0]:
                rows += batched(vae, path, asked, name)
            if "decode" in asked.only:
                rows += decoded(vae, path, asked, name)
        if "read" in asked.only:
            rows += parts(folder, asked.rounds)
    for row in rows:
        same = {True: "; the same latent", False: "; ANOTHER LATENT", None: ""}[row.bit_equal]
        print(f"{row.job} | {row.who}: {row.seconds:.4f} s; {row.note}{same}")
    if asked.output is not None:
        machine = machine_of(open_card(asked.card))
        versions = {**versions_of(asked.commit), "av": av.__version__}
        write(asked.output, rows, machine=machine, versions=versions)


if __name__ == "__main__":
    main()
