"""`generate` in Python: pictures and clips of tiny pipelines on virtual cards."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

import tightfit
from tests.pipelines import tiny
from tests.pipelines.making import SIZES, make
from tightfit.api.generation import choice
from tightfit.errors import MemoryShortage
from tightfit.media.info import probe
from tightfit.media.latents import load_latent
from tightfit.units import KIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
TIGHT = {"flux": 1400 * KIB, "sdxl": 2100 * KIB, "wan": 600 * KIB}
"""Less than all networks take beside the activations of the largest."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
def test_the_same_seed_gives_the_same_latents_at_every_budget(kind: str, tmp_path: Path) -> None:
    """Bit for bit, on a card where all fits and on one where networks take turns or stream."""
    found = []
    for name, vram in (("roomy", None), ("tight", TIGHT[kind])):
        kept = tmp_path / f"{name}.safetensors"
        report = make(kind, vram=vram, latents=kept).report
        found.append(load_latent(kept).latent)
        assert report.peak_bytes <= (vram or 2**30)
        assert report.after_bytes == report.before_bytes == 0
    assert torch.equal(*found)
    assert found[0].std() > 0


def test_settings_stand_in_the_picture_and_nothing_else_is_left(tmp_path: Path) -> None:
    """Prompt, seed, steps, guidance, size, scheduler, model and version; no path of the machine."""
    out = tmp_path / "a.png"
    done = make("sdxl", out=out, negative="dögs", guidance=4.5).value[0]
    with Image.open(out) as read:
        text = dict(read.text)  # type: ignore[attr-defined]
        assert read.size == (64, 64)
    assert text == dict(done.settings)
    assert text["negative prompt"] == "dögs"
    named = ("prompt", "seed", "steps", "guidance", "size", "scheduler")
    told = ["a cat", "1", "2", "4.5", "64x64", "EulerDiscreteScheduler"]
    assert [text[name] for name in named] == told
    assert text["Software"] == f"tightfit {tightfit.__version__}"
    assert str(tmp_path) not in json.dumps(text)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a.png"]


def test_a_report_tells_each_stage(tmp_path: Path) -> None:
    """Seconds of each in the order of the work, which add up; the steps; the rung of the VAE."""
    report = make("flux", out=tmp_path / "a.png").report
    stages = {each["stage"]: each for each in report.stages}
    assert list(stages) == ["load", "encode text", "denoise", "decode", "write"]
    assert stages["denoise"]["steps"] == 2
    assert stages["denoise"]["seconds_per_step"] > 0
    assert sum(each["seconds"] for each in report.stages) <= report.seconds
    (last,) = report.attempts
    assert (last["stage"], last["rung"], last["outcome"]) == ("decode", "whole", "ok")
    assert report.exact
    assert report.error_bound == 0
    assert report.model["networks"]["transformer"]["calls"] == 2
    assert report.ledger["weights_resident"]["bytes"] > 0
    assert report.estimate["peak_bytes"] > report.ledger["weights_resident"]["bytes"]
    assert json.loads(report.to_json())["output"]["items"][0]["seed"] == 1


def test_several_pictures_are_those_of_the_seeds_that_follow(tmp_path: Path) -> None:
    """Each from its own generator; two in one batch are those made alone, but for rounding."""
    both = make("sdxl", num=2, out=tmp_path / "a.png").value
    alone = make("sdxl", seed=2).value[0]
    assert [each.seed for each in both] == [1, 2]
    assert [each.path.name for each in both] == ["a-1.png", "a-2.png"]
    torch.testing.assert_close(both[1].frames.pixels, alone.frames.pixels, rtol=0, atol=2e-5)
    assert (both[0].frames.pixels - both[1].frames.pixels).abs().max() > 0.01


@pytest.mark.slow
def test_what_does_not_fit_at_once_is_made_in_parts(tmp_path: Path) -> None:
    """The report names the split; each part is as if it had been asked for alone."""
    done = make("sdxl", num=4, vram=1300 * KIB, steps=1)
    alone = make("sdxl", seed=4, vram=1300 * KIB, steps=1)
    assert [each.seed for each in done.value] == [1, 2, 3, 4]
    split = [each for each in done.report.attempts if each["rung"].endswith("at once")]
    assert split
    assert split[0]["outcome"] == "oom"
    assert any("at once, since 4 did not fit" in note for note in done.report.adjusted)
    last = done.value[3].frames.pixels
    torch.testing.assert_close(last, alone.value[0].frames.pixels, rtol=0, atol=2e-5)


def test_no_seed_is_a_new_one_that_is_told() -> None:
    """The picture can be made again by it."""
    first = make("wan", seed=None).value[0]
    second = make("wan", seed=None).value[0]
    assert first.seed != second.seed
    assert torch.equal(make("wan", seed=first.seed).value[0].frames.pixels, first.frames.pixels)


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "frames"])
def test_a_clip_goes_where_its_name_says(name: str, tmp_path: Path) -> None:
    """Five frames of 32x32, in each form."""
    done = make("wan", out=tmp_path / name, fps="10").value[0]
    found = probe(tmp_path / name)
    assert (found.width, found.height, found.frames) == (32, 32, 5)
    assert done.frames.pixels.shape == (5, 3, 32, 32)
    assert done.frames.fps == Fraction(10)
    assert done.settings["frames"] == "5"


def test_a_decode_is_tiled_where_that_is_asked_for_alone() -> None:
    """Once: the pipeline that was fitted for it codes as before afterwards."""
    pipe = tightfit.fit(tiny.flux(), card="virtual:1GiB")
    before = tightfit.fitted(pipe).codes
    given = {"prompt": "a cat", "width": 128, "height": 128, "steps": 1, "seed": 1}
    tiled = tightfit.generate(pipe, tile="64", **given)
    assert tiled.report.attempts[-1]["rung"] == "tiles 64x64"
    assert not tiled.report.exact
    assert tightfit.fitted(pipe).codes == before
    assert tightfit.generate(pipe, **given).report.attempts[-1]["rung"] == "whole"
    tightfit.unfit(pipe)


def test_random_weights_that_the_host_cannot_hold_are_refused_before_they_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are in no file, in which some could stay; the system would end the process."""
    monkeypatch.setattr(choice, "host_room", lambda _: 10_000)
    with pytest.raises(MemoryShortage, match="the random weights of random:flux") as caught:
        tightfit.generate("random:flux.1-dev-mini", prompt="a cat", card="virtual:1GiB")
    assert "9.8 KiB of" in str(caught.value)
