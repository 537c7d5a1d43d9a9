"""A folder to a folder and back, in the library."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tightfit
from tests.media.makers import cut, write_film
from tightfit.adapters import find_vae, load_vae
from tightfit.api import reading, writing
from tightfit.api.batches import coding_all
from tightfit.errors import Cancelled, UsageError
from tightfit.media.info import probe
from tightfit.media.latents import load_latent
from tightfit.testing import toy_vae

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


def film(path: Path, shade: int) -> Path:
    """Nine frames of one shade each."""
    return write_film(path, np.stack([np.full((24, 40, 3), shade + k, np.uint8) for k in range(9)]))


def test_the_next_input_is_read_while_one_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never two at a time, and none further ahead; the latents are those of one by one."""
    names = ["1.mp4", "2.mp4", "3.png", "4.mp4"]
    for at, name in enumerate(names):
        if name.endswith("png"):
            Image.new("RGB", (40, 24), (40, 90, 0)).save(tmp_path / name)
        else:
            film(tmp_path / name, 20 * at)
    events: list[tuple[str, str]] = []
    read, save = reading.read, coding_all.save_latent

    def reads(source: Any, *more: Any) -> Any:
        events.append(("begins", source.name))
        made = read(source, *more)
        events.append(("ends", source.name))
        return made

    def saves(out: Path, latent: Any) -> None:
        for each in threading.enumerate():
            if "reading" in each.name:
                each.join()
        events.append(("saved", out.stem))
        save(out, latent)

    monkeypatch.setattr(reading, "read", reads)
    monkeypatch.setattr(coding_all, "save_latent", saves)
    vae = toy_vae("V3", width=8)
    done = tightfit.encode_all(
        [tmp_path / name for name in names], tmp_path / "z", vae=vae, card="virtual:1GiB"
    )
    assert done.count("written") == 4
    turns = [[("begins", name), ("ends", name)] for name in names]
    saved = [("saved", Path(name).stem) for name in names]
    assert events == [
        *turns[0],
        *turns[1],
        saved[0],
        *turns[2],
        saved[1],
        *turns[3],
        *saved[2:],
    ]
    for name in names:
        alone = tightfit.encode(tmp_path / name, vae=vae, card="virtual:1GiB").value.latent
        assert torch.equal(
            load_latent(tmp_path / "z" / f"{Path(name).stem}.safetensors").latent, alone
        )
    assert not [each for each in threading.enumerate() if each.name.startswith("tightfit")]


def test_an_error_of_an_input_that_is_read_ahead_is_its_own(tmp_path: Path) -> None:
    """The one before it is written, and the one behind it too."""
    inputs = [film(tmp_path / f"{name}.mp4", 30) for name in "abc"]
    cut(inputs[1], 0.5)
    done = tightfit.encode_all(
        inputs, tmp_path / "z", vae=toy_vae("V3", width=8), card="virtual:1GiB"
    )
    assert [each.outcome for each in done.items] == ["written", "failed", "written"]
    assert done.items[1].error is not None
    assert "b.mp4" in done.items[1].error


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Cancelled])
def test_a_stop_ends_what_is_read_ahead(tmp_path: Path, stop: type[BaseException]) -> None:
    """No thread goes on."""
    inputs = [film(tmp_path / f"{name}.mp4", 30) for name in "abc"]

    def finish(done: object) -> None:
        raise stop("for the test")

    with pytest.raises(stop):
        tightfit.encode_all(
            inputs,
            tmp_path / "z",
            vae=toy_vae("V3", width=8),
            card="virtual:1GiB",
            finish=finish,
        )
    assert not [each for each in threading.enumerate() if each.name.startswith("tightfit")]


def test_what_is_there_already_is_not_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It will be kept."""
    inputs = [film(tmp_path / f"{name}.mp4", 30) for name in "ab"]
    vae, out = toy_vae("V3", width=8), tmp_path / "z"
    assert tightfit.encode_all(inputs, out, vae=vae, card="virtual:1GiB").good
    (out / "a.safetensors").unlink()
    begun: list[str] = []
    read = reading.read
    monkeypatch.setattr(
        reading, "read", lambda source, *more: begun.append(source.name) or read(source, *more)
    )
    assert tightfit.encode_all(inputs, out, vae=vae, card="virtual:1GiB").count("kept") == 1
    assert begun == ["a.mp4"]


def test_frames_of_a_batch_are_written_while_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of one decode are: they never lie in memory together."""
    inputs = [film(tmp_path / f"{name}.mp4", 30) for name in "ab"]
    vae, card = toy_vae("V3", width=8), "virtual:1GiB"
    assert tightfit.encode_all(inputs, tmp_path / "z", vae=vae, card=card).good
    taken: list[int] = []
    take = writing.FrameSink.take

    def takes(sink: Any, samples: torch.Tensor) -> None:
        taken.append(samples.shape[2])
        take(sink, samples)

    monkeypatch.setattr(writing.FrameSink, "take", takes)
    done = tightfit.decode_all(tmp_path / "z", tmp_path / "out", vae=vae, card=card)
    assert taken == [1, 4, 4] * 2
    for each in done.items:
        assert each.report is not None
        assert each.report.output == {
            "frames": 9,
            "width": 40,
            "height": 24,
            "path": str(each.out),
        }
        assert probe(each.out).frames == 9
