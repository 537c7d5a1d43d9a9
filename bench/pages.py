"""Pages that show what tightfit does: the seed's job before and after, and a streamed transformer.

    python bench/pages.py -o build/pages            # on cuda:0, about two minutes
    python bench/pages.py -o build/pages --cpu      # small stand-ins on virtual cards

``seed-before``     a VAE that does not fit, retried in tiles inside the except block
``seed-after``      the same job, weights and budget through tightfit, which tries the whole as well
``seed-planned``    the same as it comes: what is known not to fit is not tried
``flux-streamed``   a transformer larger than its card, some steps

Of each, the trace (`.jsonl`, packed by gzip where it is large) and the page that
`tightfit report TRACE -o` makes of it. Who holds what the failed try left is looked for in a second
run of that try: a search takes as long as the job, and would stand in the figure as a pause.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from plain_retry import plain_tiles
from scales import FULL, SMALL, Scale, smooth_clip
from stream_steps import inputs_of
from torch import nn
from vae_fallback import _in_a_thread

import tightfit
from tightfit.adapters import find_parts, find_vae, load_vae, outline_part
from tightfit.api import Watching
from tightfit.card import Card, open_card
from tightfit.errors import MemoryShortage
from tightfit.place import placed
from tightfit.plan.size import Size
from tightfit.report.page import page
from tightfit.report.trace_file import read_trace
from tightfit.run.vae import Vae
from tightfit.units import MIB, format_bytes, parse_bytes
from tightfit.watch import Recorder
from tightfit.watch.events import (
    Attempt,
    Baseline,
    Done,
    End,
    LeakFound,
    Oom,
    StageBegan,
    StepDone,
    Tile,
    Told,
)
from tightfit.watch.leaks import Found, Scope, look, what_stayed
from tightfit.watch.moves import moves_told
from tightfit.weigh import Kind, weights

_LARGE = 2 * MIB
_STANDING = ("plan", "placed", "ring", "moved")
"""Events that say how weights lie."""


@dataclass(frozen=True)
class Streamed:
    """The job of the streamed page.

    Attributes:
        spec: of the network.
        dtype: of its weights.
        size: of the picture.
        vram: what may be used of the card.
        steps: how many.
    """

    spec: str
    dtype: torch.dtype
    size: Size
    vram: str
    steps: int = 4


@dataclass(frozen=True)
class Scenes:
    """What is shown.

    Attributes:
        card: of every page.
        scale: of the seed's job.
        vram: what that may use.
        streamed: the other job.
    """

    card: str
    scale: Scale
    vram: str
    streamed: Streamed


ON_CUDA = Scenes(
    "cuda:0",
    FULL,
    "4GiB",
    Streamed("random:flux.1-dev/transformer", torch.bfloat16, Size(1024, 1024), "12GiB"),
)
REHEARSED = Scenes(
    "virtual:1GiB,allocator=native",
    SMALL,
    "44MiB",
    Streamed("random:flux.1-dev-mini/transformer", torch.bfloat16, Size(64, 64), "9MiB"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages that are asked for, and say what each shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--card", help="default: cuda:0, or a virtual one with --cpu")
    parser.add_argument("--cpu", action="store_true", help="small stand-ins, no GPU")
    parser.add_argument("--vram", help="of the seed's job")
    parser.add_argument("--only", choices=tuple(_PAGES), action="append")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/pages"))
    asked = parser.parse_args(arguments)
    scenes = REHEARSED if asked.cpu else ON_CUDA
    scenes = replace(scenes, card=asked.card or scenes.card, vram=asked.vram or scenes.vram)
    asked.output.mkdir(parents=True, exist_ok=True)
    with _nothing_learnt():
        for name, make in _PAGES.items():
            if asked.only and name not in asked.only:
                continue
            start = time.perf_counter()
            recorder = _in_a_thread(partial(make, scenes))
            write(asked.output / name, recorder)
            print(f"{name}: {told(recorder)}; {time.perf_counter() - start:.1f} s", flush=True)
            del recorder
            gc.collect()


def write(path: Path, recorder: Recorder) -> None:
    """The trace and its page, by the suffixes that they have."""
    trace = path.with_name(f"{path.name}.jsonl")
    recorder.write(trace)
    path.with_name(f"{path.name}.html").write_text(page(read_trace(trace)), encoding="utf-8")
    if trace.stat().st_size > _LARGE:
        packed = trace.with_name(f"{trace.name}.gz")
        packed.write_bytes(gzip.compress(trace.read_bytes()))
        trace.unlink()


def told(recorder: Recorder) -> str:
    """The figures that a reader of the page should find there."""
    words = [
        f"peak {format_bytes(recorder.peak_allocated)} allocated, "
        f"{format_bytes(recorder.peak_reserved)} reserved",
        f"{sum(recorder.counts.values())} events, {recorder.dropped} dropped",
    ]
    for event in recorder.events():
        kind = event["event"]
        if kind == "attempt" and event["stage"] != "load":
            words.append(f"{event['rung']} from {format_bytes(event['held_bytes'] or 0)}")
        elif kind in ("oom", "done", "skipped"):
            words.append({"oom": "out of memory", "done": "done"}.get(kind, f"{event['rung']} no"))
        elif kind == "streamed_step":
            words.append(f"step {event['seconds']} s, {event['times_limit']} x its limit")
    return "; ".join(words)


# The seed's job


def seed_before(scenes: Scenes) -> Recorder:
    """The plain way."""
    card, vae, source = _seed(scenes)
    plain = Plain(card, vae, scenes.scale, parse_bytes(scenes.vram))
    plain.run(source)
    leaks = plain.who_holds(source).leaks
    for leak in leaks:
        held = {**leak.as_event(), "moment": "in the handler of the failed try"}
        plain.recorder.tell(LeakFound(held), at=plain.failed_at)
    return plain.recorder


def seed_after(scenes: Scenes) -> Recorder:
    """Every rung is tried, so that the failed try is seen."""
    return _ours(scenes, estimate=False)


def seed_planned(scenes: Scenes) -> Recorder:
    """As a user has it."""
    return _ours(scenes, estimate=True)


def _ours(scenes: Scenes, *, estimate: bool) -> Recorder:
    card, vae, source = _seed(scenes)
    recorder = Recorder(fine=True)
    frames = (source[0].transpose(0, 1).float() + 1) / 2
    with suppress(MemoryShortage):  # it is in the trace
        tightfit.encode(
            frames,
            vae=vae,
            card=card,
            vram=scenes.vram,
            estimate=estimate,
            watching=Watching(recorder),
        )
    return recorder


def _seed(scenes: Scenes) -> tuple[Card, Vae, torch.Tensor]:
    scale = scenes.scale
    vae = load_vae(find_vae(scale.spec), dtype=scale.dtype)
    return open_card(scenes.card), vae, smooth_clip(scale.frames, scale.side, dtype=scale.dtype)


@dataclass
class Plain:
    """An encode as it is often written: whole, and in the handler of its failure in tiles.

    Attributes:
        card: where.
        vae, scale: the model, and the tiles.
        budget: bytes that PyTorch may reserve.
        recorder: is told of every move.
        failed_at: when the whole failed, by the recorder.
    tries: what became of each, as a report has it.
    """

    card: Card
    vae: Vae
    scale: Scale
    budget: int
    recorder: Recorder = field(default_factory=lambda: Recorder(fine=True))
    failed_at: float | None = None
    tries: list[dict[str, Any]] = field(default_factory=list)

    def run(self, source: torch.Tensor) -> None:
        """Encode `source` [1,3,T,H,W] once; then the card is empty again."""
        card, recorder = self.card, self.recorder
        recorder.on(card)
        start = time.perf_counter()
        with card.cap(self.budget), card.observe(recorder.memory), moves_told(card, recorder):
            before = card.read().allocated
            recorder.tell(StageBegan("load"))
            with placed(self.vae.module, card.device), torch.no_grad():
                loaded = source.to(card.device)
                recorder.tell(StageBegan("encode"))
                baseline = card.read().allocated
                recorder.tell(Baseline(baseline))
                value = self._retried(loaded)
                del loaded
            self._cleared()
            after = card.read().allocated
            recorder.tell(End(after))
        report = {
            "command": "encode, retried inside the except block",
            "model": {"name": self.vae.traits.name, "random": self.vae.random},
            "input": {"width": source.shape[-1], "height": source.shape[-2]},
            "card": recorder.about["card"],
            "budget_bytes": self.budget,
            "attempts": self.tries,
            "before_bytes": before,
            "baseline_bytes": baseline,
            "peak_bytes": recorder.peak_allocated,
            "peak_reserved_bytes": recorder.peak_reserved,
            "after_bytes": after,
            "error": None if value is not None else "Every try ran out of memory.",
            "seconds": round(time.perf_counter() - start, 3),
        }
        recorder.tell(Told(report))

    def who_holds(self, source: torch.Tensor) -> Found:
        """What is on the card in the handler of the whole try, and who holds it."""
        with (
            self.card.cap(self.budget),
            placed(self.vae.module, self.card.device),
            torch.no_grad(),
        ):
            loaded = source.to(self.card.device)
            before = look(Scope((self.card,)))
            found = Found((), {}, {})
            try:
                self.vae.call("encode")(loaded).cpu()
            except torch.OutOfMemoryError as error:
                found = what_stayed(before)
                del error
            del loaded
        self._cleared()
        return found

    def _retried(self, source: torch.Tensor) -> torch.Tensor | None:
        """The mistake: as long as the handler runs, the error holds every frame of the try."""
        call = self.vae.call("encode")
        try:
            with self._told("whole"):
                return call(source).cpu()
        except torch.OutOfMemoryError:
            for tile in self.scale.tiles:
                rung = f"tiles {tile}x{tile}"
                with suppress(torch.OutOfMemoryError), self._told(rung):
                    return plain_tiles(
                        self._counting(call, rung, tile, source.shape[-2:]),
                        source,
                        tile=tile,
                        overlap=self.scale.overlap,
                        vae=self.vae,
                        direction="encode",
                    )
        return None

    @contextmanager
    def _told(self, rung: str) -> Iterator[None]:
        recorder, card = self.recorder, self.card
        card.reset_peaks()
        before = card.read().allocated
        recorder.tell(Attempt("encode", rung, before))
        tried = {"stage": "encode", "rung": rung, "outcome": "ok", "held_before_bytes": before}
        self.tries.append(tried)
        try:
            yield
            recorder.tell(Done("encode", rung))
        except torch.OutOfMemoryError as error:
            said = str(error).split("\n", 1)[0]
            tried.update(outcome="oom", reason=said)
            recorder.tell(Oom("encode", rung, said))
            self.failed_at = self.failed_at or recorder.now()
            raise
        finally:
            after = card.read()
            tried.update(peak_bytes=after.peak_allocated, peak_reserved_bytes=after.peak_reserved)
            recorder.peaks(after.peak_allocated, after.peak_reserved)

    def _counting(
        self,
        call: Callable[[torch.Tensor], torch.Tensor],
        rung: str,
        tile: int,
        extent: Sequence[int],
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        boxes = _boxes(tile, self.scale.overlap, extent)
        done = 0

        def counted(piece: torch.Tensor) -> torch.Tensor:
            nonlocal done
            value = call(piece)
            self.card.sync()
            done += 1
            self.recorder.tell(Tile(rung, done, len(boxes), boxes[done - 1]))
            return value

        return counted

    def _cleared(self) -> None:
        self.vae.reset()
        gc.collect()
        self.card.trim()


def _boxes(tile: int, overlap: int, extent: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Left, top, width, height of the tiles that `plain_tiles` goes through, in pixels."""
    height, width = extent
    return [
        (left, top, min(tile, width - left), min(tile, height - top))
        for top in range(0, height - overlap, tile - overlap)
        for left in range(0, width - overlap, tile - overlap)
    ]


# The streamed network


def flux_streamed(scenes: Scenes) -> Recorder:
    """The weights lie where they belong before the record begins, which takes longer than a step:
    the first moment of the trace says how they lie.
    """
    job = scenes.streamed
    card = open_card(scenes.card)
    (part,) = find_parts(job.spec)
    outline = outline_part(part, dtype=job.dtype)
    inputs = inputs_of(part, outline, job.size, dtype=job.dtype, device=card.device)
    module = filled(outline)
    step = inputs.into(module)
    tightfit.fit(module, card=card, vram=job.vram, example=inputs.values, pack="off", traces=True)
    step()
    fitted = tightfit.fitted(module)
    placing, recorder = fitted.recorder, Recorder(fine=True)
    recorder.on(card)
    for event in placing.events():
        if event["event"] in _STANDING:
            kind = event.pop("event")
            event.pop("t")
            recorder.event(kind, **event)
    fitted.recorder = recorder
    card.reset_peaks()
    recorder.tell(StageBegan("denoise"))
    for done in range(1, job.steps + 1):
        step()
        card.sync()
        recorder.tell(StepDone(done, job.steps))
    fitted.tell()
    peaks = card.read()
    recorder.peaks(peaks.peak_allocated, peaks.peak_reserved)
    report = {
        "command": f"{job.steps} steps at {job.size.width}x{job.size.height}",
        "model": {"name": type(module).__name__, "spec": job.spec, "random": True},
        "card": recorder.about["card"],
    }
    recorder.tell(Told(report))
    tightfit.unfit(module)
    gc.collect()
    card.trim()
    return recorder


def filled(outline: nn.Module) -> nn.Module:
    """The network with weights that are one small number each: what they are does not matter, and
    drawing them would take a minute.
    """
    made: dict[int, nn.Parameter] = {}
    for held in list(weights(outline)):
        if held.kind is not Kind.PARAMETER:
            raise RuntimeError(f"{held.path} has values of its own, which an outline has not.")
        key = id(held.tensor)
        if key not in made:
            there = torch.empty(held.tensor.shape, dtype=held.tensor.dtype).fill_(1e-4)
            made[key] = nn.Parameter(there, requires_grad=False)
        held.owner._parameters[held.name] = made[key]
    return outline


@contextmanager
def _nothing_learnt() -> Iterator[None]:
    """While inside, what earlier jobs taught is not known: the pages show a first time."""
    name = "XDG_CACHE_HOME"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


_PAGES: dict[str, Callable[[Scenes], Recorder]] = {
    "seed-before": seed_before,
    "seed-after": seed_after,
    "seed-planned": seed_planned,
    "flux-streamed": flux_streamed,
}

if __name__ == "__main__":
    main()
