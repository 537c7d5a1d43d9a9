"""What the demo does, step by step, and says as it goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from tightfit.adapters import find_vae, load_vae
from tightfit.api import Watching, decode, encode
from tightfit.api.sources import Selection, look, read
from tightfit.api.writing import Target, write_frames
from tightfit.card import open_card
from tightfit.errors import InputError
from tightfit.media.clip import parse_frames
from tightfit.media.files import whole_file
from tightfit.media.latents import load_latent, save_latent
from tightfit.report.chart import chart
from tightfit.report.record import Report
from tightfit.run.framing import to_source
from tightfit.run.job import Job, Request
from tightfit.run.vae import Vae
from tightfit.units import MIB, format_bytes
from tightfit.weigh import weight_bytes

_VAE = "mini:wan2.1-vae"
_MOST_FRAMES = 13
_ROOM_FOR_ONE_TILE = 1.08


@dataclass(frozen=True)
class _Steps:
    console: Console

    def __call__(self, number: int, text: str) -> None:
        self.console.print(f"[bold]{number}.[/bold] {escape(text)}")


def walk_through(clip: Path, out: Path, *, frames: str | None, width: int, say: Console) -> None:
    """Run the demo on `clip`, scaled to `width` pixels; results go to the folder `out`."""
    started = time.perf_counter()
    step = _Steps(say)
    vae = load_vae(find_vae(_VAE))
    pixels = _shrunk(clip, frames, width)
    count, _, height, length = pixels.shape
    size, whole = _card_size(vae, pixels)
    many = "frame" if count == 1 else "frames"
    step(1, f"{clip.name}: {count} {many}, scaled to {length}x{height}")
    step(
        2,
        f"a virtual card of {format_bytes(size)}: the whole clip needs {format_bytes(whole)}",
    )
    card = open_card(f"virtual:{size}B")
    watching = Watching()
    done = encode(pixels, vae=vae, card=card, estimate=False, watching=watching)
    for attempt in done.report.attempts:
        say.print(
            escape(
                f"     {attempt['rung']}: "
                + ("out of memory" if attempt["outcome"] == "oom" else attempt["outcome"])
                + f", began with {format_bytes(attempt['held_before_bytes'])} held, "
                f"peak {format_bytes(attempt['peak_bytes'])}"
            )
        )
    say.print(escape(f"     {_how_close(done.report)}"))
    say.print()
    for line in chart(watching.recorder.events(), budget=size):
        say.print(escape(line))
    say.print()
    latent = out / "clip.safetensors"
    save_latent(latent, done.value)
    shape = "x".join(map(str, done.value.latent.shape))
    step(3, f"latent {shape} on disk: {latent} ({format_bytes(latent.stat().st_size)})")
    back = decode(load_latent(latent), vae=vae, card=card)
    film = out / ("clip.mp4" if count > 1 else "clip.png")
    write_frames(Target(film), back.value)
    step(4, f"decoded in {_last(back.report)} on the same card: {film}")
    for name, report in (("encode.json", done.report), ("decode.json", back.report)):
        with whole_file(out / name) as part:
            part.write_text(report.to_json(), encoding="utf-8")
    with whole_file(out / "encode.trace.jsonl") as part:
        watching.recorder.write(part)
    say.print(
        escape(
            f"   {_decibels(pixels, back.value.pixels):.1f} dB against the source; the card holds "
            f"{format_bytes(card.read().allocated or 0)} now; "
            f"{time.perf_counter() - started:.0f} s in all"
        )
    )


def _shrunk(clip: Path, frames: str | None, width: int) -> torch.Tensor:
    """The clip's frames [T,3,H,W] in 0..1, at `width` and an even height."""
    selection = Selection(parse_frames(frames) if frames else None)
    info = look(clip, selection)
    if frames is None and info is not None and info.kind == "clip":
        selection = Selection(slice(0, _MOST_FRAMES))
    footage = read(clip, selection).frames
    pixels = footage.float() / 255 if footage.dtype == torch.uint8 else footage
    scale = width / pixels.shape[-1]
    if scale >= 1:
        return pixels
    height = max(16, round(pixels.shape[-2] * scale / 8) * 8)
    return torch.nn.functional.interpolate(pixels, (height, width), mode="area")


def _card_size(vae: Vae, pixels: torch.Tensor) -> tuple[int, int]:
    """A card for half of the clip and not for all of it: its size, and what the clip needs."""
    source, _ = to_source(pixels, vae.traits)
    job = Job(vae, "encode", open_card("virtual:1TiB"), Request(2**40, estimate=False))
    ways = job.rungs(torch.empty_like(source, device="meta")).in_order(None)
    needs = [way.need() for way in islice(ways, 2)]
    whole, tile = needs[0], needs[-1]
    if whole is None or tile is None:
        raise InputError("The demo's VAE cannot be planned with this version of PyTorch.")
    held = weight_bytes(vae.module) + source.nbytes
    size = -(-int((held + tile) * _ROOM_FOR_ONE_TILE) // MIB) * MIB
    if held + whole <= size:
        raise InputError("The input is too small to run out of memory: give a larger --input.")
    return size, held + whole


def _how_close(report: Report) -> str:
    """Whether the result is that of a whole run, and where the rest lay meanwhile."""
    if not report.exact:
        return "close to a whole run, but not the same: each tile sees only its own surroundings"
    text = (
        "exact: every strip of rows has the rows around it, so only rounding differs from a whole"
    )
    line = report.ledger.get("host_activations") or {}
    kept = line.get("bytes")
    return f"{text}; {format_bytes(kept)} lay in the host's memory" if kept else text


def _last(report: Report) -> str:
    return str(report.attempts[-1]["rung"])


def _decibels(one: torch.Tensor, other: torch.Tensor) -> float:
    """Peak signal to noise ratio of two clips in 0..1."""
    error = torch.mean((one - other) ** 2).item()
    return float(10 * torch.log10(torch.tensor(1 / max(error, 1e-12))))
