"""A whole job on a Ray of its own, through the command line; and what is refused before one."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import tightfit
from tests.clips import write_clip
from tightfit.cli.main import run
from tightfit.cluster import encoding
from tightfit.errors import UsageError

VAE = "random:wan2.1-vae-mini"
GOOD = ("a", "b", "c")


class Job:
    """One that is run once, for all that is asked of it: starting Ray takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "in").mkdir()
        for number, name in enumerate((*GOOD, "other")):
            write_clip(folder / "in" / f"{name}.mp4", 1 + number, 32, 24)
        (folder / "in" / "bad.mp4").write_bytes(b"nonsense")
        rows: list[dict[str, Any]] = [{"path": f"in/{name}.mp4"} for name in (*GOOD, "bad")]
        rows.append({"path": "in/other.mp4", "sha256": "0" * 64})
        listed = folder / "list.jsonl"
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.out.mkdir()
        (self.out / ".manifest-01234567.part.jsonl").write_text("of a job that was killed")
        command = ["encode", "list.jsonl", "-o", "out", "--vae", VAE, "--engine", "ray"]
        options = ["--cards", "virtual:2x1GiB", "--shards", "2", "--shard-format", "webdataset"]
        self.ended = subprocess.run(
            [sys.executable, "-m", "tightfit", *command, *options, "--report", "report.json"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in (self.out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"))


@pytest.mark.slow
def test_it_says_what_became_of_each_and_nothing_else(job: Job) -> None:
    """Neither Ray nor what it is made of has a word; one failed, so the exit code is 1."""
    assert job.ended.returncode == 1
    assert sorted(job.ended.stdout.splitlines()) == [
        "5 inputs: 3 written, 2 failed",
        "out/shard-000000.tar: of in/a.mp4",
        "out/shard-000000.tar: of in/b.mp4",
        "out/shard-000001.tar: of in/c.mp4",
    ]
    errors = sorted(job.ended.stderr.splitlines())
    assert len(errors) == 2
    assert errors[0].startswith("error: Cannot read in/bad.mp4: it is neither")
    assert "the manifest says" in errors[1]


@pytest.mark.slow
def test_its_outputs_are_those_of_one_process(job: Job) -> None:
    """Byte for byte, as files of a shard, in the order of the manifest."""
    sources = [job.folder / "in" / f"{name}.mp4" for name in GOOD]
    alone = job.folder / "alone"
    options = {"mode": "auto", "tile": "auto", "dtype": "auto", "pad": "repeat"}
    more = {"estimate": True, "keep_alpha": False, "background": "white"}
    tightfit.encode_all(sources, alone, vae=VAE, card="virtual:1GiB", **options, **more)
    wanted = [(alone / f"{name}.safetensors").read_bytes() for name in GOOD]
    found = []
    for shard in sorted(job.out.glob("shard-*.tar")):
        with tarfile.open(shard) as tar:
            for name in tar.getnames():
                opened = tar.extractfile(name)
                assert opened is not None
                if name.endswith(".safetensors"):
                    found.append(opened.read())
    assert found == wanted
    manifest = job.lines("manifest.jsonl")
    assert [line["name"] for line in manifest] == list(GOOD)
    assert [line["out_sha256"] for line in manifest] == [sha256(w).hexdigest() for w in wanted]


@pytest.mark.slow
def test_nothing_is_left_beside_the_outputs(job: Job) -> None:
    """Not what a killed job had left there either; failures are in a file of their own."""
    assert sorted(each.name for each in job.out.iterdir()) == [
        *("failed.jsonl", "manifest.jsonl", "shard-000000.tar", "shard-000001.tar")
    ]
    assert [line["name"] for line in job.lines("failed.jsonl")] == ["bad", "other"]
    report = json.loads((job.folder / "report.json").read_text())
    assert (report["written"], report["failed"]) == (3, 2)
    assert report["items"][0]["report"]["card"]["name"] == "virtual:1GiB"


def test_the_command_line_costs_no_ray() -> None:
    """Neither the library nor a job of one process imports it."""
    code = (
        "import sys, tightfit.cli.main, tightfit; from tightfit import encode_all; "
        "import tightfit.cluster.encoding; sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "sun"], "--engine `sun` is unknown: use local or ray"),
        (["--cards", "cpu"], "--cards goes with --engine ray"),
        (["--address", "auto"], "--address goes with --engine ray"),
        (["--engine", "ray", "--card", "cpu"], "name them with --cards"),
        (["--engine", "ray", "--trace", "t.jsonl"], "--trace watches one process"),
        (["--engine", "ray", "--cards", "cuda:7"], "`cuda:7` does not exist"),
        (["--engine", "ray", "--shards", "0"], "a shard holds one item at least"),
        (["--engine", "ray", "--shard-format", "zip"], "goes with --shards"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "nothing answers there"),
        (["--engine", "ray", "--frames", "x"], "--frames"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_ray_is_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    """One sentence and exit code 2."""
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "a.mp4", 1, 32, 24)
    assert run(["encode", "a.mp4", "-o", "out", "--vae", VAE, *options]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than name a module that is missing."""
    monkeypatch.setattr(encoding, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'tightfit\[cluster\]'"):
        encoding.encode_on_cards(tmp_path, tmp_path / "out", vae=VAE)
