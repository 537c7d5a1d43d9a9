"""`tightfit plan` as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.model_files import broken_files, gguf_file, model_file, sharded
from tightfit.cli import run
from tightfit.units import GIB, MIB

KEYS = {
    "annexe",
    "version",
    "fits",
    "mode",
    "card",
    "rates",
    "together",
    "exact",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "stages",
    "host",
    "not_predicted",
    "shortage",
    "size",
    "models",
    "notes",
    "solved",
}


@pytest.fixture
def flux(tmp_path: Path) -> str:
    """A file of FLUX.1-dev, of true size and with nothing in it."""
    return str(model_file(tmp_path, "flux"))


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What a plan prints; it says nothing on the side."""
    assert run(["plan", *arguments]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def told(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """The JSON of a plan."""
    values: dict[str, Any] = json.loads(printed([*arguments, "--json"], capsys, code))
    assert set(values) == KEYS
    return values


def sizes(value: object) -> list[object]:
    """Every value under a key that says bytes."""
    found: list[object] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [inner] if str(key).endswith("bytes") else sizes(inner)
    elif isinstance(value, list):
        for inner in value:
            found += sizes(inner)
    return found


def test_a_file_is_planned_without_torch(flux: str) -> None:
    """On a terminal, as JSON, in a search, and when it is refused."""
    code = (
        "import sys; from tightfit.cli import run\n"
        f"file = {flux!r}\n"
        "assert run(['plan', file, '--vram', '6GiB']) == 0\n"
        "assert run(['plan', file, '--vram', '6GiB', '--json', '--solve', 'vram']) == 0\n"
        "assert run(['plan', file, '--vram', '64MiB']) == 3\n"
        "assert run(['plan', file, '--vram', 'six']) == 2\n"
        "assert run(['plan', file, '--vram', '6GiB', '--frames', '5']) == 2\n"
        "sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("error: ") == len(done.stderr.splitlines()) == 2


def test_a_plan_is_a_screenful_with_every_line_that_counts(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked, the card, the ledger, what stays, what binds, what would change it."""
    out = printed([flux, "--card", "virtual:rtx-3060", "--reserve-vram", "1GiB"], capsys)
    assert out.startswith("flux.1-dev/transformer at 1024x1024\nvirtual:rtx-3060: 12.0 GiB in all")
    for words in (
        "weights, resident",
        "ring",
        "activations",
        "library workspaces",
        "slack",
        "context",
        "reserve",
        "sum for the budget",
        "sum for the card",
        "are streamed through",
        "binds: ",
        "keeps all weights resident",
        "Host memory: ",
        "note: rtx-3060 is from a table",
    ):
        assert words in out, words
    assert len(out.splitlines()) < 40
    assert " 0 B" not in out
    assert "None" not in out


def test_quiet_says_nothing_and_ends_alike(flux: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is the answer; JSON that was asked for is printed all the same."""
    assert printed([flux, "--vram", "6GiB", "-q"], capsys) == ""
    assert printed([flux, "--vram", "64MiB", "-q"], capsys, 3) == ""
    assert told([flux, "--vram", "6GiB", "-q"], capsys)["fits"]


def test_json_is_integers_nulls_and_text_under_stable_keys(
    flux: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For what fits, what does not, and what is not predicted."""
    unknown = str(model_file(tmp_path, "unknown"))
    for arguments, code in (
        ([flux, "--card", "virtual:rtx-3060"], 0),
        ([flux, "--vram", "64MiB"], 3),
        ([unknown, "--vram", "1GiB"], 0),
    ):
        values = told(arguments, capsys, code)
        assert values["version"] == 1
        assert values["fits"] == (code == 0)
        assert (values["shortage"] is None) == (code == 0)
        assert values["solved"] is None
        assert all(size is None or type(size) is int for size in sizes(values))
    assert values["peak_allocated_bytes"] is None
    assert values["models"][0]["dry_bytes"] is None


def test_what_does_not_fit_ends_with_3_and_says_what_would_help(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, how much, what was tried, what to do."""
    out = printed([flux, "--vram", "8GiB", "--vram-mode", "high"], capsys, 3)
    text = out.replace("\n  ", " ")
    assert "Not enough memory to denoise 1024x1024 with flux.1-dev/transformer." in text
    assert "Needs 22.7 GiB; 8.0 GiB can be used" in text
    assert "Tried: whole, all weights resident" in text
    assert "--vram-mode auto, which streams what does not fit" in text


@pytest.mark.parametrize("mode", ["auto", "high", "low", "none"])
def test_a_mode_is_named_in_the_answer(
    flux: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And in the figures."""
    out = printed([flux, "--card", "virtual:rtx-4090", "--vram-mode", mode], capsys)
    assert f"mode {mode}" in out.replace("\n  ", " ")
    values = told([flux, "--card", "virtual:rtx-4090", "--vram-mode", mode], capsys)
    assert values["mode"] == mode


def test_an_allocator_is_named_and_has_its_slack(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a bare card, which has none of its own."""
    for allocator in ("native", "async", "expandable"):
        values = told([flux, "--vram", "6GiB", "--allocator", allocator], capsys)
        assert values["card"]["allocator"] == allocator
        ledger = values["stages"][0]["ledger"]
        assert ledger["slack"]["bytes"] > 0
        assert ledger["library_workspaces"]["bytes"] >= 41 * MIB


def test_every_kind_of_file_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GGUF, shards, a bundle with its stages, several at once."""
    packed = told([str(gguf_file(tmp_path, "flux")), "--vram", "8GiB"], capsys)
    assert packed["stages"][0]["ledger"]["conversion"]["bytes"] > 100 * MIB
    shards = told([str(sharded(tmp_path / "shards", "flux")), "--vram", "8GiB"], capsys)
    assert shards["models"][0]["name"] == "flux.1-dev/transformer"
    bundle = printed(
        [str(model_file(tmp_path, "sdxl", "F16")), "--card", "virtual:rtx-3060"], capsys
    )
    assert bundle.startswith("clip-l, openclip-bigg, sdxl/unet, sdxl-vae at 1024x1024")
    assert "note: sdxl-vae is stored as F16 and computes in float32" in bundle
    several = told(
        [str(model_file(tmp_path, name)) for name in ("t5", "wan1.3", "wan-vae")]
        + ["--card", "virtual:rtx-3060"],
        capsys,
    )
    stages = [stage["stage"] for stage in several["stages"]]
    assert stages == ["encode text", "denoise", "decode"]
    assert several["size"] == {"width": 832, "height": 480, "frames": 81, "batch": 1}


def test_the_smallest_card_is_told_with_its_plan(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the cards of the table that would do."""
    out = printed([flux, "--card", "virtual:rtx-3060", "--solve", "vram"], capsys)
    assert "The smallest budget for 1024x1024: " in out
    assert "the smallest known cards with bfloat16 that do: " in out
    assert "the smallest card: " in out
    values = told([flux, "--card", "virtual:rtx-3060", "--solve", "vram"], capsys)
    assert values["fits"]
    assert values["solved"]["for"] == "vram"
    assert values["solved"]["value"] == values["card"]["budget_bytes"]
    assert len(values["solved"]["cards"]) == 4


def test_the_largest_picture_and_the_longest_clip_are_told_with_their_plans(
    flux: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan beside the answer is the answer's."""
    values = told([flux, "--vram", "3GiB", "--solve", "size"], capsys)
    assert values["solved"]["value"] == values["size"]
    assert values["fits"]
    side = values["size"]["width"]
    again = ["--width", str(side), "--height", str(side)]
    assert told([flux, "--vram", "3GiB", *again], capsys)["fits"]
    wan = str(model_file(tmp_path, "wan14"))
    clip = told([wan, "--vram", "6GiB", "--solve", "frames"], capsys)
    assert clip["solved"]["value"] == clip["size"]["frames"] > 81


def test_a_search_without_an_answer_ends_with_3(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan of what was asked says why."""
    out = printed([flux, "--vram", "64MiB", "--solve", "size"], capsys, 3)
    assert "Not even the smallest picture fits virtual:64MiB." in out
    assert told([flux, "--vram", "64MiB", "--solve", "size"], capsys, 3)["solved"]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--width", "0"], "--width `0` is out of range"),
        (["--width", "wide"], "'--width'"),
        (["--height", "-8"], "--height `-8` is out of range"),
        (["--width", "999999999999"], "is out of range"),
        (["--frames", "0"], "--frames `0`"),
        (["--batch", "0"], "--batch `0`"),
        (["--vram", "6"], "is not a size"),
        (["--vram", "0%"], "not a share"),
        (["--vram", "7GiB", "--card", "virtual:6GiB"], "above what virtual:6GiB has"),
        (["--reserve-vram", "-1GiB"], "is not a size"),
        (["--card", "virtual:rtx-3065"], "Did you mean"),
        (["--card", "rtx-3060"], "Did you mean virtual:rtx-3060?"),
        (["--vram-mode", "lots"], "use auto, high, low, none"),
        (["--allocator", "mine"], "use native, async, expandable"),
        (["--dtype", "int4"], "use auto, float32"),
        (["--tile", "0"], "has a zero"),
        (["--solve", "price"], "use vram, size, frames"),
        (["--solve", "frames"], "makes pictures"),
        (["--overlap", "8"], "No such option"),
    ],
)
def test_what_cannot_be_meant_ends_with_2_in_one_sentence(
    flux: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr; stdout stays empty, also where JSON was asked for."""
    card = [] if "--card" in arguments or "--vram" in arguments else ["--vram", "6GiB"]
    assert run(["plan", flux, *arguments, *card, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert words in err


def test_what_cannot_be_read_ends_with_2_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every kind; and nothing is written beside it."""
    files = list(broken_files(tmp_path))
    before = sorted(tmp_path.iterdir())
    for path, words in files:
        assert run(["plan", str(path), "--vram", "6GiB"]) == 2, path
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
        assert words in err
    assert run(["plan"]) == 2
    assert "Missing argument" in capsys.readouterr().err
    assert run(["plan", "", "--vram", "6GiB"]) == 2
    assert "Name a model" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_is_planned_with_a_card_that_is_not_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Built and run dry; nothing on stderr."""
    small = ["--width", "64", "--height", "64"]
    out = printed(["random:flux-vae-mini", "--card", "virtual:rtx-3060", *small], capsys)
    assert out.startswith("flux-vae-mini at 64x64")
    values = told(["random:flux-vae-mini", "--vram", "1GiB", *small], capsys)
    assert [stage["stage"] for stage in values["stages"]] == ["encode", "decode"]
    assert values["models"][0]["source"] == "predicted"
    assert values["models"][0]["peak_operator"]
    assert run(["plan", "random:fluxx", "--vram", "6GiB"]) == 2
    assert "near it are" in capsys.readouterr().err


def test_the_budget_and_the_card_are_told_apart(
    flux: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A share of a card that holds more."""
    values = told([flux, "--card", "virtual:rtx-3060", "--vram", "50%"], capsys)
    assert values["card"]["total_bytes"] == 12 * GIB
    assert values["card"]["budget_bytes"] == values["card"]["room_bytes"] == 6 * GIB
