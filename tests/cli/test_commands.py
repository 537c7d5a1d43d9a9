"""`tightfit encode` and `tightfit decode` as users run them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.clips import write_clip, write_rgba
from tightfit import api
from tightfit.cli import run
from tightfit.media.info import probe
from tightfit.media.latents import load_latent
from tightfit.media.picture import read_picture

WAN = "random:wan2.1-vae-mini"
FLUX = "random:flux-vae-mini"
ONE_TILE = "virtual:12MiB"  # of the clip below: one tile of 2x2 fits, the whole does not


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Five frames of 128x96."""
    return write_clip(tmp_path / "clip.mp4", 5, 128, 96)


def files(folder: Path) -> set[str]:
    """What lies in the folder, temporary names included."""
    return {path.name for path in folder.iterdir() if path.name != "cache"}


@pytest.mark.slow
def test_the_bar_of_step_one(clip: Path, tmp_path: Path) -> None:
    """oom first, then ok from the baseline, within the budget, nothing left; 20 times."""
    report = tmp_path / "r.json"
    for _ in range(20):
        code = run(
            ["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN]
            + ["--card", ONE_TILE, "--no-estimate", "--report", str(report), "-q"]
        )
        assert code == 0
        done = json.loads(report.read_text())
        assert [attempt["outcome"] for attempt in done["attempts"]] == ["oom", "ok"]
        last = done["attempts"][-1]
        assert last["held_before_bytes"] == last["baseline_bytes"] == done["baseline_bytes"]
        assert done["peak_reserved_bytes"] <= done["budget_bytes"]
        assert done["after_bytes"] == done["before_bytes"] == 0


def test_there_and_back(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clip to a latent to a clip of the same size and length; one line each on stdout."""
    latent, film = tmp_path / "z.safetensors", tmp_path / "out.mp4"
    vae = "mini:wan2.1-vae"
    assert run(["encode", str(clip), "-o", str(latent), "--vae", vae, "--card", "cpu"]) == 0
    assert run(["decode", str(latent), "-o", str(film), "--vae", vae, "--card", "cpu"]) == 0
    info = probe(film)
    assert (info.width, info.height, info.frames) == (128, 96, 5)
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err == ""
    frames = tmp_path / "frames"
    assert run(["decode", str(latent), "-o", str(frames), "--vae", vae, "--card", "cpu"]) == 0
    assert len(list(frames.iterdir())) == 5


def test_t01_the_command_line_gives_513x771_back(tmp_path: Path) -> None:
    """An RGBA picture of an odd size, encoded and decoded, is exactly that size."""
    path = write_rgba(tmp_path / "a.png", 513, 771)
    latent, out = tmp_path / "z.safetensors", tmp_path / "b.png"
    card = ["--card", "virtual:1GiB", "--tile", "256"]
    assert run(["encode", str(path), "-o", str(latent), "--vae", FLUX, *card]) == 0
    assert run(["decode", str(latent), "-o", str(out), "--vae", FLUX, *card]) == 0
    with Image.open(out) as picture:
        assert picture.size == (513, 771)


def test_c05_a_fallback_is_one_info_line(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Complete, in which tiles, and why; exit 0; the report agrees."""
    report = tmp_path / "r.json"
    code = run(
        ["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN]
        + ["--card", ONE_TILE, "--report", str(report)]
    )
    assert code == 0
    printed = capsys.readouterr()
    infos = [line for line in printed.err.splitlines() if line.startswith("info:")]
    rung = json.loads(report.read_text())["attempts"][-1]["rung"]
    assert len(infos) == 1
    assert f"in {rung}, complete" in infos[0]
    assert "whole did not fit" in infos[0]
    assert "error" not in printed.err.lower()


def test_c05_a_whole_run_says_nothing_of_rungs(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No notice without a reason."""
    out = str(tmp_path / "z.safetensors")
    assert run(["encode", str(clip), "-o", out, "--vae", WAN, "--card", "virtual:1GiB"]) == 0
    assert capsys.readouterr().err == ""


def test_c01_a_decode_that_fails_at_the_end_leaves_no_file(
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Non-zero exit, no output, one line of reason, what to try; an old file stays."""
    latent, film = tmp_path / "z.safetensors", tmp_path / "out.mp4"
    assert run(["encode", str(clip), "-o", str(latent), "--vae", WAN, "--card", "cpu", "-q"]) == 0
    film.write_bytes(b"old")
    from diffusers import AutoencoderKLWan

    real = AutoencoderKLWan.decode

    def broken(self: Any, *args: Any, **options: Any) -> Any:
        real(self, *args, **options)
        raise ValueError("the last stage broke")

    monkeypatch.setattr(AutoencoderKLWan, "decode", broken)
    assert run(["decode", str(latent), "-o", str(film), "--vae", WAN, "--card", "cpu"]) == 1
    assert film.read_bytes() == b"old"
    error = capsys.readouterr().err
    assert "the last stage broke" in error
    assert "Try:" in error
    assert files(tmp_path) == {"clip.mp4", "z.safetensors", "out.mp4"}


def test_c01_a_grey_picture_of_nans_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result that is not finite is never written."""
    picture = write_rgba(tmp_path / "a.png", 64, 64)
    latent, out = tmp_path / "z.safetensors", tmp_path / "b.png"
    assert run(["encode", str(picture), "-o", str(latent), "--vae", FLUX, "--card", "cpu"]) == 0
    from diffusers import AutoencoderKL

    monkeypatch.setattr(
        AutoencoderKL,
        "decode",
        lambda self, z, return_dict: (torch.full((1, 3, 64, 64), torch.nan),),
    )
    assert run(["decode", str(latent), "-o", str(out), "--vae", FLUX, "--card", "cpu"]) == 1
    assert not out.exists()
    assert "NaN" in capsys.readouterr().err
    told = ["decode", str(latent), "-o", str(out), "--vae", FLUX, "--card", "cpu", "--allow-nan"]
    assert run([*told, "--report", str(tmp_path / "r.json")]) == 0
    assert not read_picture(out).pixels.any()
    report = json.loads((tmp_path / "r.json").read_text())
    assert "12288 values that are not finite were written as black" in report["adjusted"]


def test_memory_that_cannot_do_is_exit_three(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before or after trying: the sentence, a report, the log, and nothing else on disk."""
    report = tmp_path / "r.json"
    for extra in ([], ["--no-estimate"]):
        code = run(
            ["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN]
            + ["--card", "virtual:6MiB", "--tile", "64", "--report", str(report), *extra]
        )
        assert code == 3
        error = capsys.readouterr().err
        assert "Not enough memory to encode 5x96x128" in error
        assert "Needs" in error
        assert "Try:" in error
        written = json.loads(report.read_text())
        assert written["error"].startswith("Not enough memory")
        assert written["after_bytes"] == 0
        assert files(tmp_path) == {"clip.mp4", "r.json", "z.safetensors.oom.json"}
    assert [a["outcome"] for a in written["attempts"]].count("oom") >= 2
    rungs = [a["rung"] for a in written["attempts"]]
    assert len(rungs) == len(set(rungs))


def test_a_trace_is_json_lines_after_a_version(clip: Path, tmp_path: Path) -> None:
    """The failed try, the recovery and every tile are in it; peaks are exact."""
    trace = tmp_path / "t.jsonl"
    code = run(
        ["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN, "-q"]
        + ["--card", ONE_TILE, "--no-estimate", "--trace", str(trace)]
        + ["--report", str(tmp_path / "r.json")]
    )
    assert code == 0
    header, *events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert header["tightfit_trace"] == 2
    kinds = {event["event"] for event in events}
    assert {"baseline", "attempt", "oom", "recovered", "tile", "done", "memory"} <= kinds
    peak = json.loads((tmp_path / "r.json").read_text())["peak_bytes"]
    assert header["peak_allocated_bytes"] == peak


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["IN", "-o", "z.txt", "--vae", WAN], "safetensors"),
        (["IN", "-o", "no/such/z.safetensors", "--vae", WAN], "does not exist"),
        (["missing.png", "-o", "z.safetensors", "--vae", WAN], "missing.png"),
        (["IN", "-o", "z.safetensors"], "--vae"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "--tile", "32"], "floor"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "--tile", "64", "--overlap", "80"], "63"),
        (["IN", "-o", "z.safetensors", "--vae", "random:gpt"], "random:gpt"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "--vram", "512"], "GiB"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "--report", "no/r.json"], "r.json"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "-v", "-q"], "contradict"),
        (["IN", "-o", "z.safetensors", "--vae", WAN, "--fps", "x"], "--fps"),
        (["text.mp4", "-o", "z.safetensors", "--vae", WAN], "text.mp4"),
        (["cut.mp4", "-o", "z.safetensors", "--vae", WAN], "cut.mp4"),
    ],
)
def test_bad_input_is_exit_two_and_leaves_nothing(
    arguments: list[str],
    word: str,
    clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused with one sentence; no weights are read where that is knowable."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.mp4").write_text("no clip")
    (tmp_path / "cut.mp4").write_bytes(clip.read_bytes()[:-2000])
    before = files(tmp_path)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(api.work, "load_vae", never)
    code = run(["encode", *(str(clip) if a == "IN" else a for a in arguments)])
    assert code == 2
    assert word in capsys.readouterr().err
    assert files(tmp_path) == before


def test_one_picture_cannot_hold_a_clip(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known before any model is loaded."""
    latent = tmp_path / "z.safetensors"
    assert run(["encode", str(clip), "-o", str(latent), "--vae", WAN, "--card", "cpu", "-q"]) == 0
    assert run(["decode", str(latent), "-o", str(tmp_path / "o.png"), "--vae", WAN]) == 2
    assert ".mp4" in capsys.readouterr().err
    for content in (b"no latent", latent.read_bytes()[:-100]):
        broken = tmp_path / "broken.safetensors"
        broken.write_bytes(content)
        assert run(["decode", str(broken), "-o", str(tmp_path / "o.mp4"), "--vae", WAN]) == 2
        assert "broken.safetensors" in capsys.readouterr().err


def test_ctrl_c_is_exit_130(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, and it says so."""

    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "encode", interrupt)
    assert run(["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN]) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert files(tmp_path) == {"clip.mp4"}


def test_an_old_file_is_replaced_only_on_success(clip: Path, tmp_path: Path) -> None:
    """A job that does not fit leaves the old latent."""
    latent = tmp_path / "z.safetensors"
    latent.write_bytes(b"old")
    common = ["encode", str(clip), "-o", str(latent), "--vae", WAN, "-q", "--card"]
    assert run([*common, "virtual:1MiB"]) == 3
    assert latent.read_bytes() == b"old"
    assert run([*common, "virtual:1GiB"]) == 0
    assert load_latent(latent).latent.shape == (1, 16, 2, 12, 16)


def test_verbose_names_every_try(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -v the reasons are printed too."""
    code = run(
        ["encode", str(clip), "-o", str(tmp_path / "z.safetensors"), "--vae", WAN, "-v"]
        + ["--card", ONE_TILE, "--no-estimate"]
    )
    assert code == 0
    error = capsys.readouterr().err
    assert "encode, whole: oom" in error
    assert "ok" in error


def test_an_error_is_printed_as_it_is(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`A:B:S` is no picture of a button."""
    out = str(tmp_path / "z.safetensors")
    assert run(["encode", str(clip), "-o", out, "--vae", WAN, "--frames", "3"]) == 2
    assert "A:B:S" in capsys.readouterr().err


@pytest.mark.parametrize("records", [("clip.mp4", "t.json"), ("r.json", "r.json")])
def test_a_record_in_the_place_of_another_file_is_refused(
    records: tuple[str, str], clip: Path, tmp_path: Path
) -> None:
    """A report never replaces what the job reads, nor the trace beside it."""
    before = clip.read_bytes()
    report, trace = (str(tmp_path / name) for name in records)
    out = str(tmp_path / "z.safetensors")
    arguments = ["encode", str(clip), "-o", out, "--vae", WAN, "--report", report]
    assert run([*arguments, "--trace", trace]) == 2
    assert (clip.read_bytes(), files(tmp_path)) == (before, {"clip.mp4"})


def test_alpha_comes_back_into_a_folder_and_is_refused_for_a_film(tmp_path: Path) -> None:
    """A PNG holds it, an MP4 does not; that is said before any model is loaded."""
    picture, latent = write_rgba(tmp_path / "a.png", 24, 16), str(tmp_path / "z.safetensors")
    out, film = tmp_path / "frames", tmp_path / "out.mp4"
    vae = ["--vae", FLUX, "--card", "virtual:1GiB", "-q"]
    assert run(["encode", str(picture), "-o", latent, "--keep-alpha", *vae]) == 0
    assert run(["decode", latent, "-o", str(out), *vae]) == 0
    with Image.open(out / "frame_00001.png") as frame:
        assert (frame.mode, frame.size) == ("RGBA", (24, 16))
    assert run(["decode", latent, "-o", str(film), "--vae", "random:nothing"]) == 2
    assert not film.exists()


def test_alpha_of_a_clip_is_kept_frame_by_frame(tmp_path: Path) -> None:
    """As that of a picture."""
    folder = tmp_path / "frames"
    folder.mkdir()
    for name in ("1.png", "2.png"):
        write_rgba(folder / name, 24, 16)
    out = tmp_path / "z.safetensors"
    vae = ["--vae", FLUX, "--card", "virtual:1GiB", "-q"]
    assert run(["encode", str(folder), "-o", str(out), "--keep-alpha", *vae]) == 0
    alpha = load_latent(out).alpha
    assert alpha is not None
    assert alpha.shape == (2, 1, 16, 24)
    assert alpha[1, 0, 0, [0, -1]].tolist() == [0, 1]


def test_an_interrupt_that_a_library_swallows_is_a_cancel(
    clip: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real SIGINT while something loads that turns it into an error of its own: 130."""

    def load(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Failed to import") from None

    monkeypatch.setattr(api, "encode", load)
    out = str(tmp_path / "z.safetensors")
    before = signal.getsignal(signal.SIGINT)
    assert run(["encode", str(clip), "-o", out, "--vae", WAN]) == 130
    assert capsys.readouterr().err == "cancelled: nothing was written\n"
    assert signal.getsignal(signal.SIGINT) is before
