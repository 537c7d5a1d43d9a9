"""Case C02: hours of work that a decode at the end would have lost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from tightfit.cli import run
from tightfit.media.latents import load_latent
from tightfit.media.picture import read_picture

PIPELINE = "random:sdxl-mini"
MAKES = ["--prompt", "a cat", "--steps", "2", "--seed", "1"]


def test_c02_latents_survive_a_decode_that_is_impossible_and_finish_on_a_smaller_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path is said; the command that is printed finishes, in less than the whole would take.

    The card is too small for the decode, whose weights alone do not fit, and large enough for every
    step before it. The picture is then the one of a large card, but for rounding.
    """
    out, report = tmp_path / "a.png", tmp_path / "r.json"
    kept = Path(f"{out}.latents.safetensors")
    small = ["--card", "virtual:4900KiB"]
    assert run(["generate", PIPELINE, "-o", str(out), *MAKES, *small, "--report", str(report)]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("The latents are kept. Finish with: tightfit decode ")
    assert not out.exists()
    failed = json.loads(report.read_text())
    assert failed["stages"][-1]["stage"] == "decode"
    assert failed["error"].splitlines()[-1] == said
    _, *command = shlex.split(said.partition("Finish with: ")[2])
    assert command[1] == str(kept)

    decoded = tmp_path / "d.json"
    card = ["--card", "virtual:7MiB", "--report", str(decoded)]
    assert run([*command, *card]) == 0
    attempts = json.loads(decoded.read_text())["attempts"]
    assert attempts[0]["rung"] == "whole"
    assert attempts[0]["outcome"] != "ok"
    assert attempts[-1]["outcome"] == "ok"

    large, latent = tmp_path / "large.png", tmp_path / "l.safetensors"
    roomy = ["--card", "virtual:1GiB", "--latents", str(latent)]
    assert run(["generate", PIPELINE, "-o", str(large), *MAKES, *roomy]) == 0
    assert torch.equal(load_latent(kept).latent, load_latent(latent).latent)
    difference = (read_picture(out).pixels - read_picture(large).pixels).abs().max()
    assert difference <= 1.01 / 255
