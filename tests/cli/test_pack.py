"""`tightfit pack` as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.place.packing.files import checkpoint, contents, damage, model, sharded
from tightfit.cli import run
from tightfit.place.packing import writing
from tightfit.weigh.files.headers import read_header


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each on stdout, none with -q; the same folder comes back."""
    source, packed, again = sharded(tmp_path / "model"), tmp_path / "p", tmp_path / "u"
    assert run(["pack", str(source), "-o", str(packed)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(str(packed))
    assert "6 of 12 tensors packed" in told.out
    assert told.out.count("\n") == 1
    assert run(["pack", "--unpack", str(packed), "-o", str(again), "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert contents(again) == contents(source)
    assert run(["pack", str(source), "-o", str(packed)]) == 0
    assert "3 of 3 files were there already" in capsys.readouterr().out


def test_json_is_all_of_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the figures of DESIGN: bytes before and after, ratio, tensors, seconds."""
    source = checkpoint(tmp_path / "m.safetensors", model("a", "b"))
    out = tmp_path / "p.safetensors"
    assert run(["pack", str(source), "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["command"]) == (1, "pack")
    assert found["before_bytes"] == source.stat().st_size
    assert found["after_bytes"] == out.stat().st_size
    assert found["tensors"] == {"packed": 2, "raw": 2}
    assert found["seconds"] > 0


def test_what_cannot_be_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Input as output, packed already, not packed, a damaged tensor: one sentence each."""
    source = checkpoint(tmp_path / "m.safetensors", model("a"))
    packed, other = tmp_path / "p.safetensors", tmp_path / "o.safetensors"
    assert run(["pack", str(source), "-o", str(packed), "-q"]) == 0
    damage(packed, packed.stat().st_size - 1)
    for arguments, word in (
        ([str(source), "-o", str(source)], "input and the output"),
        ([str(packed), "-o", str(other)], "packed already"),
        ([str(source), "-o", str(other), "--unpack"], "nothing is packed"),
        ([str(packed), "-o", str(other), "--unpack"], "`a.bias` is damaged"),
        (["random:sdxl", "-o", str(other)], "no file"),
        ([str(source)], "--out"),
    ):
        assert run(["pack", *arguments]) == 2
        said = capsys.readouterr().err
        assert word in said
        assert said.count("\n") == 1
    assert not other.exists()


def test_ctrl_c_is_exit_130_and_says_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder the files that are done; of one file, nothing."""
    source = sharded(tmp_path / "model")
    write, left = writing._write, [6]

    def interrupted(out: Any, own: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt
        write(out, own)

    monkeypatch.setattr(writing, "_write", interrupted)
    assert run(["pack", str(source), "-o", str(tmp_path / "out")]) == 130
    said = capsys.readouterr().err
    assert "cancelled: 2 of 5 files are done and kept in" in said
    assert not (tmp_path / "out").exists()
    one = next(source.glob("*.safetensors"))
    assert run(["pack", str(one), "-o", str(tmp_path / "p.safetensors")]) == 130
    assert "cancelled: nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "p.safetensors").exists()


def test_what_is_read_back_wrong_is_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job failed, and nothing is under the name."""
    source = checkpoint(tmp_path / "m.safetensors", model("a"))

    def zeros(out: Any, own: torch.Tensor) -> None:
        out.write(bytes(own.nbytes))

    monkeypatch.setattr(writing, "_write", zeros)
    assert run(["pack", str(source), "-o", str(tmp_path / "p.safetensors")]) == 1
    assert "at fault" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"m.safetensors"}


def test_a_packed_file_is_planned_without_torch(tmp_path: Path) -> None:
    """By its header alone: what it takes is what it takes packed."""
    source = checkpoint(tmp_path / "m.safetensors", {"blocks.0.w": ("BF16", (512, 512))})
    packed = tmp_path / "p.safetensors"
    assert run(["pack", str(source), "-o", str(packed), "-q"]) == 0
    code = (
        "import sys\nfrom tightfit.cli import run\n"
        f"code = run(['plan', {str(packed)!r}, '--vram', '1GiB', '--json'])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    stage = json.loads(done.stdout)["stages"][0]
    assert stage["weights_bytes"] == read_header(packed).tensors[0].stored_bytes
    assert stage["weights_bytes"] < 0.8 * 512 * 512 * 2
