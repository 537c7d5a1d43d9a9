"""What `generate` leaves where it does not end: states, latents, and nothing else."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.pipelines.making import ROOMY, make, pipeline
from tightfit.api.generation.prompting import BadPrompt, read_prompts
from tightfit.card import open_card
from tightfit.errors import Cancelled, InputError, JobFailed, MemoryShortage
from tightfit.media.latents import load_latent
from tightfit.units import KIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)


def test_of_several_prompts_a_bad_one_does_not_stop_the_rest(tmp_path: Path) -> None:
    """Bad lines are results too; the report says how many failed."""
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"a cat\n\n\xff\xfe\na dog\n")
    prompts = read_prompts(file)
    assert [type(each) for each in prompts] == [str, BadPrompt, str]
    done = make("sdxl", prompt=prompts, out=tmp_path / "p.png")
    assert [each.path and each.path.name for each in done.value] == [
        "p-0001.png",
        None,
        "p-0003.png",
    ]
    assert "line 3" in done.value[1].error
    assert done.report.error.startswith("1 of 3 failed")
    assert (tmp_path / "p-0003.png").is_file()


class Stop:
    """Ends a job at its step `at`."""

    def __init__(self, at: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at = at
        self.error = error
        self.watching = tightfit.Watching()
        self.watching.progress = self.progress

    def progress(self, rung: str, done: int, total: int) -> None:
        del total
        if rung.startswith("denoise") and done == self.at:
            if self.error is Cancelled:
                self.watching.cancel.set()
            else:
                raise self.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"),
    [("flux", KeyboardInterrupt), ("sdxl", Cancelled), ("wan", KeyboardInterrupt)],
)
def test_an_interrupted_job_goes_on_to_the_same_bits(
    kind: str, error: type[BaseException], tmp_path: Path
) -> None:
    """What is kept is named, the seed comes from it, and it goes when all is written."""
    out = tmp_path / ("a.mp4" if kind == "wan" else "a.png")
    state = tmp_path / f"{out.name}.resume.safetensors"
    with pytest.raises(error) as stopped:
        make(kind, steps=4, out=out, watching=Stop(2, error).watching)
    assert not out.exists()
    assert str(state) in " ".join(stopped.value.__notes__)
    kept = {path.name for path in tmp_path.iterdir() if path.name != "cache"}
    assert kept == {state.name}
    resumed = make(kind, steps=4, seed=None, out=out, resume=True)
    assert any(note.startswith("went on after step 2") for note in resumed.report.adjusted)
    whole = make(kind, steps=4)
    assert torch.equal(resumed.value[0].frames.pixels, whole.value[0].frames.pixels)
    assert out.exists()
    assert not state.exists()


def test_another_job_does_not_go_on_with_what_one_left(tmp_path: Path) -> None:
    """What differs is named."""
    out = tmp_path / "a.png"
    with pytest.raises(KeyboardInterrupt):
        make("sdxl", steps=4, out=out, watching=Stop(2).watching)
    with pytest.raises(InputError, match="steps was `4`, and is `3`"):
        make("sdxl", steps=3, out=out, resume=True)
    with pytest.raises(InputError, match="size was `64x64xNone`, and is `32x64xNone`"):
        make("sdxl", steps=4, width=32, out=out, resume=True)


def test_a_budget_below_the_smallest_block_is_a_sentence(tmp_path: Path) -> None:
    """Nothing is on the card after it, and what was there is there."""
    out = tmp_path / "a.png"
    out.write_bytes(b"old")
    card = open_card(ROOMY)
    with pytest.raises(MemoryShortage, match="Not enough memory to run") as short:
        make("sdxl", card=card, vram=100 * KIB, out=out)
    assert short.value.report.error == str(short.value)
    del short  # a traceback keeps what it shows
    gc.collect()
    assert out.read_bytes() == b"old"
    assert card.read().allocated == 0


def test_a_decode_that_fails_leaves_the_latents_and_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason; on success they go."""
    pipe = pipeline("sdxl")
    inner = pipe.vae.decoder.forward

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("a broken decoder")

    pipe.vae.decoder.forward = broken
    out = tmp_path / "a.png"
    with pytest.raises(JobFailed, match="broken decoder") as failed:
        make("sdxl", pipe, out=out)
    kept = tmp_path / "a.png.latents.safetensors"
    last = str(failed.value).splitlines()[-1]
    assert last.startswith("The latents are kept.")
    assert f"tightfit decode {kept} -o {out} --vae" in last
    assert load_latent(kept).width == 64
    pipe.vae.decoder.forward = inner
    make("sdxl", pipe, out=out)
    assert not kept.exists()


def test_an_interrupted_file_of_prompts_goes_on_with_the_one_that_was_stopped(
    tmp_path: Path,
) -> None:
    """What was written before stays as it is; all are what they would have been."""
    prompts = ["a cat", "a dog", "a fox"]
    stop = Stop(1)
    inner, begun = stop.progress, []

    def progress(rung: str, done: int, total: int) -> None:
        begun.append(rung)
        if begun.count("encode text") == 2:
            inner(rung, done, total)

    stop.watching.progress = progress
    out = tmp_path / "p.png"
    with pytest.raises(KeyboardInterrupt) as stopped:
        make("sdxl", prompt=prompts, out=out, watching=stop.watching)
    assert "1 were written before" in " ".join(stopped.value.__notes__)
    first = (tmp_path / "p-0001.png").stat().st_mtime_ns
    done = make("sdxl", prompt=prompts, seed=None, out=out, resume=True)
    assert (tmp_path / "p-0001.png").stat().st_mtime_ns == first
    assert [each.path.name for each in done.value] == ["p-0001.png", "p-0002.png", "p-0003.png"]
    whole = make("sdxl", prompt=prompts)
    for resumed, alone in zip(done.value[1:], whole.value[1:], strict=True):
        assert torch.equal(resumed.frames.pixels, alone.frames.pixels)


@pytest.mark.parametrize(("kind", "name"), [("wan", "c.mp4"), ("wan", "c.gif"), ("sdxl", "c.webp")])
def test_what_is_there_of_a_file_of_prompts_is_kept_whatever_kind_it_is(
    kind: str, name: str, tmp_path: Path
) -> None:
    """By what its file says, with its seed where nobody gives one; another prompt is made."""
    out = tmp_path / name
    make(kind, prompt=["a cat", "a dog"], out=out)
    first = tmp_path / name.replace(".", "-0001.")
    before = first.stat().st_mtime_ns
    done = make(kind, prompt=["a cat", "a fox"], seed=None, out=out, resume=True).value
    assert first.stat().st_mtime_ns == before
    assert [each.frames is None for each in done] == [True, False]
    assert [each.seed for each in done] == [1, 1]
