"""Case C06: one bad item does not stop the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import tightfit
from tests.cases.common import virtual
from tightfit.api import work
from tightfit.cli import run
from tightfit.media.latents import load_latent

VAE = "random:flux-vae-mini"
CARD = "virtual:6MiB"


def picture(path: Path, side: int, colour: str) -> Path:
    Image.new("RGB", (side, side), colour).save(path)
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Five: the third is half a file, the fourth too large for the card even in tiles."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, side in ((1, 32), (2, 32), (3, 32), (4, 1600), (5, 32)):
        picture(folder / f"{number}.png", side, ["red", "blue"][number % 2])
    third = folder / "3.png"
    third.write_bytes(third.read_bytes()[:60])
    return folder


def encode(inputs: Path, out: Path, *more: str) -> int:
    return run(["encode", str(inputs), "-o", str(out), "--vae", VAE, "--card", CARD, *more])


def test_c06_a_bad_item_does_not_stop_the_batch(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1, 2 and 5 are written; the summary, the exit code and the report tell of the two others."""
    out, report = tmp_path / "out", tmp_path / "r.json"
    assert encode(inputs, out, "--report", str(report)) == 1
    said = capsys.readouterr()
    assert sorted(each.name for each in out.iterdir()) == [f"{n}.safetensors" for n in (1, 2, 5)]
    assert said.out.splitlines()[-1] == "5 inputs: 3 written, 2 failed"
    bad, large = (line for line in said.err.splitlines() if line.startswith("error: "))
    assert "3.png" in bad
    assert "Not enough memory to encode 1600x1600" in large
    told = json.loads(report.read_text())
    assert [each["outcome"] for each in told["items"]] == [
        *("written", "written", "failed", "failed", "written")
    ]
    assert [each["exit_code"] for each in told["items"]] == [0, 0, 2, 3, 0]
    assert {each["held_bytes"] for each in told["items"]} == {0}


def test_c06_what_is_done_is_kept_and_the_rest_goes_on(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mended inputs are made; an output that was changed, or is of other options, is made anew."""
    out = tmp_path / "out"
    assert encode(inputs, out) == 1
    before = {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    picture(inputs / "3.png", 32, "green")
    (inputs / "4.png").unlink()
    damaged = out / "5.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    capsys.readouterr()
    assert encode(inputs, out) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "4 inputs: 2 written, 2 were there already, 0 failed"
    for name in ("1.safetensors", "2.safetensors"):
        assert (out / name).stat().st_mtime_ns == before[name]
    load_latent(damaged)
    assert encode(inputs, out, "--sample", "7") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 inputs: 4 written, 0 failed"


def test_c06_the_vae_is_loaded_once_and_the_card_is_as_it_was(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the library too, with the same latents as one by one; it is outlined once for plans."""
    made: list[str] = []
    load, outline = work.load_vae, work.outline_vae
    monkeypatch.setattr(work, "load_vae", lambda *a, **k: made.append("load") or load(*a, **k))
    monkeypatch.setattr(
        work, "outline_vae", lambda *a, **k: made.append("outline") or outline(*a, **k)
    )
    card = virtual("6MiB")
    held: list[int | None] = []
    done = tightfit.encode_all(
        inputs,
        tmp_path / "out",
        vae=VAE,
        card=card,
        tell=lambda *_: held.append(card.read().allocated),
    )
    assert made == ["outline", "load"]
    assert held == [0] * 5
    assert card.read().allocated == 0
    assert (done.count("written"), done.count("failed"), done.exit_code) == (3, 2, 1)
    alone = tightfit.encode(inputs / "1.png", vae=VAE, card=virtual("6MiB")).value
    kept = load_latent(tmp_path / "out" / "1.safetensors")
    assert (kept.latent == alone.latent).all()


def test_c06_latents_are_decoded_as_a_batch(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A latent that is cut off fails alone; what is decoded is kept, unless it was changed."""
    latents, out = tmp_path / "z", tmp_path / "out"
    encode(inputs, latents)
    cut = latents / "2.safetensors"
    cut.write_bytes(cut.read_bytes()[:-10])
    command = ["decode", f"{latents}/*.safetensors", "-o", str(out), "--vae", VAE, "--card", CARD]
    assert run(command) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "3 inputs: 2 written, 1 failed"
    with Image.open(out / "1.png") as decoded:
        assert decoded.size == (32, 32)
    (out / "5.png").write_bytes(b"")
    assert run(command) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "3 inputs: 1 written, 1 were there already, 1 failed"


@pytest.mark.parametrize(
    "wrong",
    [["--pad", "x"], ["--frames", "x"], ["--dtype", "x"], ["--tile", "x"], ["--vae", "random:x"]],
)
def test_c06_what_is_wrong_with_all_of_it_is_said_once(
    wrong: list[str], inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read, and not for each of them."""
    assert encode(inputs, tmp_path / "out", *wrong) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert wrong[1] in error
    assert not (tmp_path / "out").exists()
