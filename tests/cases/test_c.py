"""Group C: what the command line says of a job."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.api import work
from tightfit.cli import run
from tightfit.media.info import probe
from tightfit.media.latents import LatentFile, save_latent
from tightfit.run.vae import Vae

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("nan", "values are NaN or infinite"),
        ("raise", "The job failed: RuntimeError: the last layer broke"),
    ],
)
def test_c01_a_decode_that_fails_at_its_last_stage_is_a_failure(
    fault: str,
    says: str,
    latent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No grey film and no success: an exit code, one line of why, what to try, and no file."""
    load = work.load_vae

    def broken(*arguments: Any, **options: Any) -> Vae:
        vae = load(*arguments, **options)

        def last(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            if output.device.type == "meta":
                return output
            if fault == "raise":
                raise RuntimeError("the last layer broke")
            return output * float("nan")

        module: Any = vae.module
        module.decoder.conv_out.register_forward_hook(last)
        return vae

    monkeypatch.setattr(work, "load_vae", broken)
    out = tmp_path / "out.mp4"
    code = run(["decode", str(latent), "-o", str(out), "--vae", PICTURES, "--card", "cpu"])
    assert code == 1
    error = capsys.readouterr().err
    assert says in error.splitlines()[0]
    assert "Try" in error
    assert sorted(each.name for each in tmp_path.iterdir()) == [latent.name]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--vram", "80G"], "80.0 GiB is above what virtual:64MiB has, 64.0 MiB"),
        (["--vram", "1.5g"], "1.5 GiB is above what virtual:64MiB has, 64.0 MiB"),
        (["--vram", "512M"], "512.0 MiB is above what virtual:64MiB has, 64.0 MiB"),
        (["--vram", "512"], "`512` is not a size: write a number with B, KB, MB"),
        (["--vram", "0"], "`0` is not a size: write a number with B, KB, MB"),
        (["--vram", "0MiB"], "`0MiB` is zero: write a number with B, KB, MB"),
        (["--vram=-80G"], "`-80G` leaves nothing: the card has 64.0 MiB in all"),
        (["--reserve-vram=-1"], "`-1` is not a size: write a number with B, KB, MB"),
        (["--reserve-vram=-1GiB"], "`-1GiB` is not a size: write a number with B, KB, MB"),
        (["--reserve-vram", "80G"], "80.0 GiB leaves nothing of virtual:64MiB, which has 64.0 MiB"),
    ],
)
@pytest.mark.parametrize("command", ["decode", "plan"])
def test_c03_a_budget_that_cannot_be_is_refused_with_its_value(
    command: str,
    asked: list[str],
    says: str,
    latent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In units, before anything starts: never a negative working memory, never a silent default."""
    out = tmp_path / "out.mp4"
    decode = ["decode", str(latent), "-o", str(out), "--vae", PICTURES]
    job = decode if command == "decode" else ["plan", PICTURES]
    assert run([*job, "--card", "virtual:64MiB", *asked]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert says in error
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "budget"),
    [("1.5g", 3 * 2**29), ("512M", 2**29), ("50%", 2**30), ("-512MiB", 3 * 2**29)],
)
def test_c03_a_budget_that_can_be_is_what_was_written(
    asked: str, budget: int, latent: Path, tmp_path: Path
) -> None:
    """`g` is GiB and `m` is MiB; the report has the bytes, and no figure in it is negative."""
    report = tmp_path / "r.json"
    job = ["decode", str(latent), "-o", str(tmp_path / "out.mp4"), "--vae", PICTURES]
    more = ["--card", "virtual:2GiB", f"--vram={asked}", "--report", str(report)]
    assert run([*job, *more]) == 0
    told = json.loads(report.read_text())
    assert told["budget_bytes"] == budget
    assert all(line["bytes"] is None or line["bytes"] >= 0 for line in told["ledger"].values())
