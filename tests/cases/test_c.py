"""Group C: what the command line says of a job."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from tightfit.cli import run
from tightfit.media.info import probe
from tightfit.media.latents import LatentFile, save_latent

FRAMES = 30
PICTURES = "random:flux-vae-mini"
TILES_ALONE = "virtual:8MiB"  # neither four frames of 96x96 at once nor one fits


@pytest.fixture
def latent(tmp_path: Path) -> Path:
    """Of a clip, from a VAE that takes it frame by frame."""
    path = tmp_path / "z.safetensors"
    made = LatentFile(
        latent=torch.randn(FRAMES, 16, 12, 12) / 2,
        vae="AutoencoderKL",
        ratio=(1, 8),
        dtype="float32",
        width=96,
        height=96,
        frames=FRAMES,
        fps=Fraction(24),
    )
    save_latent(path, made)
    return path


@pytest.mark.parametrize("extra", [[], ["--no-estimate"]], ids=["planned", "tried"])
def test_c05_a_job_of_30_frames_that_falls_back_is_one_info_line(
    extra: list[str], latent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one for each frame or strip: complete, in what, why; exit 0; the report agrees."""
    film, report = tmp_path / "out.mp4", tmp_path / "r.json"
    code = run(
        ["decode", str(latent), "-o", str(film), "--vae", PICTURES]
        + ["--card", TILES_ALONE, "--report", str(report), *extra]
    )
    assert code == 0
    (notice,) = capsys.readouterr().err.splitlines()
    done = json.loads(report.read_text())
    last = done["attempts"][-1]
    assert (last["outcome"], last["tile"]) == ("ok", None)
    assert "strips" in last["rung"]
    assert done["exact"]
    assert done["error_bound"] == 1e-5
    assert notice.startswith("info: ")
    assert f"decoded in {last['rung']}, complete" in notice
    assert ("ran out of memory" if extra else "did not fit") in notice
    assert len(set(done["warnings"])) == len(done["warnings"])
    assert probe(film).frames == FRAMES
