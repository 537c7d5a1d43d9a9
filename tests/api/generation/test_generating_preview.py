"""`generate` that shows how far it is: a small picture, and not a bit of the result changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.pipelines.making import make, pipeline
from tightfit.adapters.live.looks import Look
from tightfit.api.generation.preview import Preview
from tightfit.errors import UsageError
from tightfit.media.latents import load_latent

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)


@pytest.mark.parametrize("kind", ["flux", "wan"])
def test_a_preview_changes_no_bit_and_takes_nothing_of_the_card(kind: str, tmp_path: Path) -> None:
    """The same latents, peak and steps; the picture has one colour for each place of them."""
    found, peaks = [], []
    for name, preview in (("without", None), ("with", tmp_path / "seen.png")):
        kept = tmp_path / f"{name}.safetensors"
        report = make(kind, latents=kept, preview=preview).report
        found.append(load_latent(kept).latent)
        peaks.append(report.peak_bytes)
        assert not report.adjusted
    assert torch.equal(*found)
    assert peaks[0] == peaks[1]
    with Image.open(tmp_path / "seen.png") as seen:
        assert seen.size == (found[0].shape[-1], found[0].shape[-2])
        assert len(set(seen.tobytes())) > 1


def test_pictures_that_are_made_at_once_are_seen_side_by_side(tmp_path: Path) -> None:
    """In one file, which is whole whenever somebody looks."""
    make("sdxl", num=2, preview=tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as seen:
        assert seen.size[0] == 2 * seen.size[1]


def test_a_preview_is_renewed_now_and_then_and_at_the_last_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not after every step where those are short."""
    now, written = [0.0], []
    monkeypatch.setattr(
        "tightfit.api.generation.preview.write_picture", lambda *_: written.append(now[0])
    )
    look = Look.of(pipeline("sdxl").vae)
    preview = Preview(tmp_path / "seen.png", look, clock=lambda: now[0])
    latents = torch.randn(1, look.traits.latent_channels, 4, 4)
    for at in range(1, 9):
        now[0] = at * 0.4
        preview.show(object(), latents, latents, last=at == 8)
    assert written == pytest.approx([0.4, 1.6, 2.8, 3.2])


def test_a_preview_that_cannot_be_made_is_noted_and_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that is full half way, and a VAE that nobody can look at."""

    def full(*_: object) -> None:
        raise UsageError("the disk is full")

    monkeypatch.setattr("tightfit.api.generation.preview.write_picture", full)
    report = make("sdxl", preview=tmp_path / "seen.png").report
    assert report.adjusted == ["no preview: the disk is full"]
    monkeypatch.setattr("tightfit.api.generation.preview.Look.of", full)
    report = make("sdxl", preview=tmp_path / "seen.png").report
    assert report.adjusted == ["the disk is full"]
    assert not (tmp_path / "seen.png").exists()


def test_a_preview_has_a_place_of_its_own(tmp_path: Path) -> None:
    """A picture, another file than the output; said before anything is loaded."""
    out = tmp_path / "a.png"
    with pytest.raises(UsageError, match="give each its own name"):
        make("sdxl", out=out, preview=out)
    with pytest.raises(UsageError, match="txt"):
        make("sdxl", out=out, preview=tmp_path / "a.txt")
