"""A folder to a folder and back, in the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import tightfit
from tightfit.adapters import find_vae, load_vae
from tightfit.errors import UsageError
from tightfit.media.info import probe

VAE = "random:flux-vae-mini"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    frames = [Image.new("RGB", (32, 24), (40 * k, 90, 0)) for k in range(3)]
    frames[0].save(folder / "clip.gif", save_all=True, append_images=frames[1:], duration=100)
    frames[0].save(folder / "still.png")
    return folder


def test_pictures_and_clips_go_there_and_back(inputs: Path, tmp_path: Path) -> None:
    """Each in the kind of file that holds it; the second time nothing is done."""
    latents, out = tmp_path / "z", tmp_path / "out"
    assert tightfit.encode_all(inputs, latents, vae=VAE, card="cpu").good
    assert tightfit.decode_all(latents, out, vae=VAE, card="cpu").good
    assert (probe(out / "clip.mp4").frames, probe(out / "still.png").frames) == (3, 1)
    for again in (
        tightfit.encode_all(inputs, latents, vae=VAE, card="cpu"),
        tightfit.decode_all(latents, out, vae=VAE, card="cpu"),
    ):
        assert again.count("kept") == 2


def test_another_vae_or_option_makes_it_anew(inputs: Path, tmp_path: Path) -> None:
    """A module is told by its weights, a folder by its files; memory options do not count."""
    latents = tmp_path / "z"
    module = load_vae(find_vae(VAE)).module
    saved = tmp_path / "vae"
    module.save_pretrained(saved)

    def written(vae: object, **options: object) -> int:
        return tightfit.encode_all(inputs, latents, vae=vae, card="cpu", **options).count("written")

    assert written(module) == 2
    assert written(module, vram="90%", estimate=False) == 0
    with torch.no_grad():
        module.encoder.conv_in.bias.add_(1)
    assert written(module) == 2
    assert written(str(saved)) == 2
    assert written(str(saved)) == 0
    module.save_pretrained(saved)
    assert written(str(saved)) == 2
    assert written(str(saved), background="black") == 2


def test_outputs_do_not_go_into_a_file(inputs: Path, tmp_path: Path) -> None:
    """A batch has a folder."""
    with pytest.raises(UsageError, match="go into a folder"):
        tightfit.encode_all(inputs, inputs / "still.png", vae=VAE, card="cpu")
