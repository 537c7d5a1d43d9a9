"""`tightfit generate` as users run it, with small pipelines that need no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tightfit import api
from tightfit.cli import run
from tightfit.media.info import probe
from tightfit.media.latents import load_latent

SDXL = "random:sdxl-mini"
ROOMY = "virtual:1GiB"


def generate(*more: str, pipeline: str = SDXL, out: Path, card: str = ROOMY) -> int:
    """The exit code; one step, seed 1, 64x64."""
    given = ["generate", pipeline, "-o", str(out), "--steps", "1", "--seed", "1"]
    size = [] if "--width" in more else ["--width", "64", "--height", "64"]
    return run([*given, *size, "--card", card, *more])


def files(folder: Path) -> set[str]:
    """What lies in the folder, temporary names included."""
    return {path.name for path in folder.iterdir() if path.name != "cache"}


def test_the_same_seed_gives_the_same_latents_at_two_budgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit; the smaller one decodes in strips, which one line says."""
    found = {}
    for name, vram in (("roomy", "1GiB"), ("tight", "6MiB")):
        latent, report = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.json"
        more = ["--prompt", "a cat", "--latents", str(latent), "--report", str(report)]
        assert generate(*more, "--vram", vram, out=tmp_path / f"{name}.png") == 0
        found[name] = load_latent(latent).latent
        done = json.loads(report.read_text())
        assert done["peak_bytes"] <= done["budget_bytes"]
        assert done["after_bytes"] == 0
        assert done["model"]["random"]
    assert torch.equal(found["roomy"], found["tight"])
    printed = capsys.readouterr()
    roomy, tight = printed.out.splitlines()
    assert roomy.startswith(f"{tmp_path / 'roomy.png'}: 64x64, seed 1, ")
    assert tight.startswith(f"{tmp_path / 'tight.png'}: 64x64, seed 1, ")
    assert all(line.startswith("info: decoded in") for line in printed.err.splitlines())


def test_two_cards_share_the_networks_of_a_picture(tmp_path: Path) -> None:
    """The picture is that of one card, and the report says which network was where."""
    found = []
    for name, card in (("one", ROOMY), ("two", "virtual:2x64MiB")):
        out, report = tmp_path / f"{name}.png", tmp_path / f"{name}.json"
        assert generate("--prompt", "a cat", "--report", str(report), out=out, card=card) == 0
        with Image.open(out) as picture:
            found.append(picture.tobytes())
        networks = json.loads(report.read_text())["model"]["networks"]
        where = {part: told["card"] for part, told in networks.items()}
        assert len(set(where.values())) == (2 if name == "two" else 1)
    assert where["unet"] != where["text_encoder"]
    assert where["unet"] == "virtual:2x64MiB (card 0)"
    assert found[0] == found[1]
    assert generate("--prompt", "a cat", "--vram", "1MiB", out=out, card="virtual:2x64MiB") == 3


def test_prompts_of_a_file_are_made_one_by_one_and_a_bad_line_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are written; exit code 1; the report names each."""
    prompts, report = tmp_path / "prompts.txt", tmp_path / "r.json"
    prompts.write_bytes(b"a cat\n\xff\na dog\n")
    more = ["--prompts", str(prompts), "--report", str(report)]
    assert generate(*more, out=tmp_path / "p.png") == 1
    assert files(tmp_path) == {"p-0001.png", "p-0003.png", "prompts.txt", "r.json"}
    said = capsys.readouterr().err
    assert "line 2 of" in said
    assert "1 of 3 failed; the others are written." in said
    items = json.loads(report.read_text())["output"]["items"]
    assert [each["error"] is None for each in items] == [True, False, True]
    with Image.open(tmp_path / "p-0003.png") as picture:
        assert picture.text["prompt"] == "a dog"  # type: ignore[attr-defined]


def test_a_clip_is_made_by_name_of_its_pipeline(tmp_path: Path) -> None:
    """Of the usual small size, at the rate it was made for."""
    out = tmp_path / "a.mp4"
    assert generate("--prompt", "a cat", pipeline="random:wan2.1-t2v-1.3b-mini", out=out) == 0
    found = probe(out)
    assert (found.width, found.height, found.frames) == (64, 64, 5)
    assert files(tmp_path) == {"a.mp4"}


REFUSED = {
    "no prompt": ([], "Give --prompt TEXT"),
    "two prompts": (["--prompt", "a", "--prompts", "p.txt"], "Give --prompt TEXT"),
    "no such file": (["--prompts", "none.txt"], "No such file"),
    "size": (["--prompt", "a", "--width", "60", "--height", "64"], "use 56 or 64"),
    "name": (["--prompt", "a", "--report", "r"], "give it a suffix"),
    "lora": (["--prompt", "a", "--lora", "x.safetensors:much"], "`much` is no strength"),
    "budget": (["--prompt", "a", "--vram", "0"], "0"),
    "weights": (["--prompt", "a", "--weights", "int3"], "use bf16 or fp8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_usage_is_one_sentence_and_exit_code_2(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written."""
    more, sentence = REFUSED[case]
    assert generate(*more, out=tmp_path / "a.png") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert sentence in printed.err
    assert files(tmp_path) == set()


@pytest.mark.parametrize("spec", ["random:nothing", "random:sdxl-mini/vae", "random:sdxl-vae-mini"])
def test_a_pipeline_that_is_none_is_refused(spec: str, tmp_path: Path) -> None:
    """Names that are unknown, and parts of pipelines."""
    assert generate("--prompt", "a", pipeline=spec, out=tmp_path / "a.png") == 2


@pytest.mark.parametrize("asks", [True, False], ids=["planned", "tried"])
def test_a_budget_below_the_smallest_block_is_exit_code_3(
    asks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the sentence and a report; before anything is loaded, where a plan is asked."""
    report = tmp_path / "r.json"
    more = ["--prompt", "a", "--vram", "300KiB", "--report", str(report)]
    assert generate(*more, *([] if asks else ["--no-estimate"]), out=tmp_path / "a.png") == 3
    assert "Not enough memory to" in capsys.readouterr().err
    done = json.loads(report.read_text())
    assert done["error"].startswith("Not enough memory")
    assert bool(done["model"]["networks"]) != asks
    assert files(tmp_path) == {"r.json", "a.png.oom.json"}


def test_ctrl_c_leaves_what_resume_goes_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 130, nothing half written, the file named; then the very same picture."""
    out, whole = tmp_path / "a.png", tmp_path / "whole.png"
    given = ["--prompt", "a cat", "--steps", "3"]
    assert generate(*given, out=whole) == 0
    original = api.Watching

    class Interrupted(original):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "progress" and value is not None:
                inner = value

                def value(rung: str, done: int, total: int) -> None:
                    inner(rung, done, total)
                    if rung.startswith("denoise") and done == 2:
                        raise KeyboardInterrupt

            super().__setattr__(name, value)

    with monkeypatch.context() as patch:
        patch.setattr("tightfit.api.work.Watching", Interrupted)
        assert generate(*given, out=out) == 130
    said = capsys.readouterr().err
    assert f"{out}.resume.safetensors is kept" in said
    assert "--resume" in said
    assert files(tmp_path) == {"whole.png", "a.png.resume.safetensors"}
    assert generate(*given, "--resume", out=out) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert files(tmp_path) == {"whole.png", "a.png"}
