"""A reader and an encoder, in one process: what they make is what a batch makes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.clips import smooth, write_clip
from tightfit.api.batches.coding_all import selection_of, settings_of
from tightfit.api.batches.made_from import told_of
from tightfit.api.work import Chosen
from tightfit.cluster.desk import TRIES, Desk
from tightfit.cluster.encoder import Encoder, finished_of
from tightfit.cluster.parcel import from_table
from tightfit.cluster.reader import Reader, decoded_bytes
from tightfit.cluster.task import Finished, Order, Task
from tightfit.media.info import probe
from tightfit.media.picture_writer import write_picture

VAE = "random:wan2.1-vae-mini"


def order(**options: Any) -> Order:
    chosen = Chosen.of(VAE)
    return Order(
        VAE,
        told_of(chosen),
        chosen.traits,
        options,
        settings_of(options),
        selection_of(options),
        False,
        torch.get_num_threads(),
    )


def task(folder: Path, source: Path, **more: Any) -> Task:
    return Task(0, source.stem, source, folder / f"{source.stem}.safetensors", **more)


def done(what: Task, how: Order, desk: Desk) -> Finished:
    """One item, through both."""
    (row,) = Reader(how, desk, "here")([what])
    (finished,) = finished_of(Encoder(how, desk, "cpu")(row))
    return finished


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write_clip(tmp_path / "in" / "clip.mp4", 6, 32, 24)


def test_an_item_becomes_the_file_that_a_batch_writes(clip: Path, tmp_path: Path) -> None:
    """Byte for byte; a second time it is kept."""
    out = tmp_path / "out"
    out.mkdir()
    how = order(frames="0:5", pad="trim")
    first = done(task(out, clip), how, Desk(10**9))
    assert first.done.outcome == "written"
    assert first.done.report is not None
    assert first.done.report.input["frames"] == 5
    tightfit.encode_all(clip, tmp_path / "ref", vae=VAE, card="cpu", frames="0:5", pad="trim")
    made = (out / "clip.safetensors").read_bytes()
    assert made == (tmp_path / "ref" / "clip.safetensors").read_bytes()
    assert (first.out_sha256, first.out_bytes) == (sha256(made).hexdigest(), len(made))
    again = done(task(out, clip), how, Desk(10**9))
    assert again.done.outcome == "kept"
    assert (again.source_sha256, again.out_sha256) == (first.source_sha256, first.out_sha256)
    assert done(task(out, clip), order(), Desk(10**9)).done.outcome == "written"


def test_a_source_that_is_not_what_the_manifest_says_fails(clip: Path, tmp_path: Path) -> None:
    """By its hash, and it is not encoded."""
    failed = done(task(tmp_path, clip, sha256="0" * 64), order(), Desk(10**9))
    assert failed.done.outcome == "failed"
    assert "the manifest says" in str(failed.done.error)
    assert not (tmp_path / "clip.safetensors").exists()


def test_what_cannot_be_read_or_written_fails_alone(clip: Path, tmp_path: Path) -> None:
    """With the sentence and the exit code of a job that does this item alone; nothing is held."""
    clip.with_name("bad.mp4").write_bytes(b"nonsense")
    for what in (
        task(tmp_path, clip.with_name("bad.mp4")),
        task(tmp_path, clip.with_name("none.mp4")),
        task(tmp_path / "no folder", clip),
    ):
        desk = Desk(10**9)
        failed = done(what, order(), desk)
        assert (failed.done.outcome, failed.done.exit_code) == ("failed", 2)
        assert desk.ask(9, "here", 10**9 + 1), "something is still granted"


@pytest.mark.parametrize("stage", ["look", "read", "encode"])
def test_an_item_that_kills_its_workers_is_set_aside(
    clip: Path, tmp_path: Path, stage: str
) -> None:
    """After so many of them; until then it is tried."""
    desk, what = Desk(10**9), task(tmp_path, clip)
    for _ in range(TRIES - 1):
        desk.begin(0, stage)
    assert done(what, order(), desk).done.outcome == "written"
    (tmp_path / "clip.safetensors").unlink()
    for _ in range(TRIES):
        desk.begin(0, stage)
    failed = done(what, order(), desk)
    assert failed.done.outcome == "failed"
    assert f"died {TRIES} times" in str(failed.done.error)


def test_what_is_decoded_is_foretold(tmp_path: Path) -> None:
    """From the header: of a part of a clip, only that part."""
    film = write_clip(tmp_path / "film.mp4", 12, 32, 24)
    write_picture(tmp_path / "still.png", smooth(3, 24, 32))
    for source, options, size in (
        (film, {}, 12 * 32 * 24 * 3),
        (film, {"frames": "2:10:2"}, 4 * 32 * 24 * 3),
        (film, {"seconds": "0:0.25"}, 7 * 32 * 24 * 3),
        (tmp_path / "still.png", {}, 32 * 24 * 12),
    ):
        how = order(**options)
        what = task(tmp_path, source)
        assert decoded_bytes(probe(source), how.selection, how.traits, what) == size
        (row,) = Reader(how, Desk(10**9), "here")([what])
        footage = from_table(row).footage
        assert footage is not None
        assert footage.frames.nbytes <= size
