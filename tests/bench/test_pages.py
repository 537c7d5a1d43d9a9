"""The benchmark that writes pages: the plain retry holds what failed, and its page says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pages
import torch
from scales import Scale, smooth_clip

from tightfit.adapters import find_vae, load_vae
from tightfit.card import open_card
from tightfit.plan.size import Size
from tightfit.plan.tilesize import TileWish
from tightfit.report.page.advice import advice
from tightfit.report.page.story import tell
from tightfit.report.trace_file import read_trace
from tightfit.run.job import Job, Request
from tightfit.watch import Recorder

SMALL = Scale("random:wan2.1-vae-mini", torch.float32, 1, 96, {}, (64, 48, 32), 8, 1)
SCENES = replace(pages.REHEARSED, card="virtual:256MiB,allocator=native", scale=SMALL)


def test_the_plain_retry_runs_above_what_the_failed_try_held(tmp_path: Path) -> None:
    """The floor rises, the holders are named, and the whole card comes back at the end."""
    vae = load_vae(find_vae(SMALL.spec), dtype=SMALL.dtype)
    clip = smooth_clip(SMALL.frames, SMALL.side, dtype=SMALL.dtype)
    free = Request(2**28, wish=TileWish(mode="off"), estimate=False)
    whole = Job(vae, "encode", open_card(SCENES.card), free).run(clip).peak_reserved_bytes
    assert whole is not None
    recorder = pages.seed_before(replace(SCENES, vram=f"{whole - 2**21}B"))
    pages.write(tmp_path / "before", recorder)
    story = tell(read_trace(tmp_path / "before.jsonl"))
    first, *_, last = story.tries[-1 - len(story.failed) :]
    assert (first.outcome, last.outcome) == ("oom", "ok")
    assert first.held is not None
    assert last.held is not None
    assert last.held > first.held
    assert story.baseline == first.held
    assert story.after == 0
    assert {leak.kind for leak in story.leaks} >= {"exception"}
    assert "in the handler of the failed try" in advice(story).text
    assert story.picture is not None
    assert story.picture.placed == "told"
    assert (tmp_path / "before.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_streamed_page_begins_with_how_weights_lie() -> None:
    """All of them are told at once, then the steps, in which none is allocated."""
    streamed = replace(pages.REHEARSED.streamed, size=Size(32, 32), steps=2)
    recorder = pages.flux_streamed(replace(SCENES, streamed=streamed))
    counts = recorder.counts
    assert (counts["step"], counts["streamed_step"]) == (2, 2)
    assert counts["placed"] > 10
    assert "flux" not in pages.told(Recorder())
    kinds = [event["event"] for event in recorder.events()]
    assert kinds.index("placed") < kinds.index("allocate")
    assert {event["state"] for event in recorder.events() if event["event"] == "placed"} == {
        "resident",
        "streamed",
    }


def test_boxes_are_those_of_the_plain_tiles() -> None:
    """Row by row, cut off at the edges."""
    assert pages._boxes(64, 16, (96, 112)) == [
        (0, 0, 64, 64),
        (48, 0, 64, 64),
        (0, 48, 64, 48),
        (48, 48, 64, 48),
    ]
