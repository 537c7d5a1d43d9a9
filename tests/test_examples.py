"""The scripts in `examples/` run as they are, with small pipelines that need no file."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tightfit.media.info import probe
from tightfit.media.latents import load_latent
from tightfit.media.picture import read_picture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
    ),
]
FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that scripts run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run it as `python examples/NAME ARGUMENTS` would."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


def test_every_example_is_run_here() -> None:
    """A new script needs a test."""
    tested = {"image.py", "video.py", "image_to_image.py", "lora.py", "two_pipelines.py"}
    assert {path.name for path in FOLDER.glob("*.py")} == tested


def test_image(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture, with its settings."""
    example("image.py", monkeypatch)
    with Image.open(here / "image.png") as picture:
        assert picture.text["seed"] == "7"  # type: ignore[attr-defined]


def test_video(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip, and its latents."""
    example("video.py", monkeypatch)
    assert probe(here / "video.mp4").frames == 9
    assert load_latent(here / "video.latents.safetensors").frames == 9


def test_image_to_image(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pictures of the size of the first."""
    example("image_to_image.py", monkeypatch)
    for name in ("new.png", "half.png"):
        assert read_picture(here / name).pixels.shape == (3, 96, 128)


def test_lora(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three strengths are three pictures."""
    pytest.importorskip("peft")
    draw = torch.Generator().manual_seed(5)
    layer = "transformer.single_transformer_blocks.0.attn.to_q"
    from tightfit import load_pipeline

    target = load_pipeline("random:flux.1-dev-mini").transformer
    wide = target.get_submodule(layer.partition(".")[2])
    weights = {
        f"{layer}.lora_A.weight": torch.randn(4, wide.in_features, generator=draw),
        f"{layer}.lora_B.weight": torch.randn(wide.out_features, 4, generator=draw),
    }
    save_file(weights, here / "style.safetensors")
    example("lora.py", monkeypatch, "style.safetensors")
    found = [read_picture(here / f"lora-{name}.png").pixels for name in ("0", "0.5", "1")]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_two_pipelines(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pictures of each."""
    example("two_pipelines.py", monkeypatch)
    names = {path.name for path in here.glob("*.png")}
    assert names == {"1-1.png", "1-2.png", "2-1.png", "2-2.png"}
