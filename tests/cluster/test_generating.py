"""A file of prompts on two cards of a Ray that is started for it, against one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tightfit
from tightfit.api.batches.batch import Batch, ItemDone
from tightfit.api.generation.prompting import read_prompts
from tightfit.cli.main import run
from tightfit.cluster.generating import generate_on_cards
from tightfit.cluster.maker import Maker
from tightfit.cluster.prompt_task import PromptOrder, PromptTask
from tightfit.errors import InputError

MINI = "random:flux.1-dev-mini"
CARD = "virtual:1GiB"
HOW = {"width": 32, "height": 32, "steps": 1, "seed": 5}
PROMPTS = b"a cat\n\n\xff\na dog\na fox\n"


class Job:
    """One on two cards, of which one worker is killed, and the same by one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prompts = folder / "prompts.txt"
        self.prompts.write_bytes(PROMPTS)
        for name in ("many", "one"):
            (folder / name).mkdir()
        (folder / "many" / ".p-0001-01234567.part.png").write_text("of a job that was killed")
        self.killed: list[int] = []
        self.ended: list[str] = []
        self.batch: Batch = generate_on_cards(
            MINI,
            self.prompts,
            out=folder / "many" / "p.png",
            latents=folder / "many" / "l.safetensors",
            cards="virtual:2x1GiB",
            finish=self.finish,
            **HOW,
        )
        tightfit.generate(
            MINI,
            prompt=read_prompts(self.prompts),
            out=folder / "one" / "p.png",
            latents=folder / "one" / "l.safetensors",
            card=CARD,
            **HOW,
        )

    def finish(self, done: ItemDone) -> None:
        """After the first that is made, a worker dies."""
        self.ended.append(done.outcome)
        if done.outcome == "written" and not self.killed:
            workers = [
                each
                for each in psutil.Process().children(recursive=True)
                if "_Worker" in " ".join(each.cmdline())
            ]
            workers[0].kill()
            self.killed.append(workers[0].pid)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("prompts"))


@pytest.mark.slow
def test_its_files_are_those_of_one_process(job: Job) -> None:
    """Names, pictures, what stands in them, and latents, byte for byte; and nothing else."""
    assert job.killed
    found = {path.name: path.read_bytes() for path in (job.folder / "many").iterdir()}
    wanted = {path.name: path.read_bytes() for path in (job.folder / "one").iterdir()}
    assert sorted(found) == sorted(wanted)
    assert "p-0003.png" in wanted
    assert found == wanted


@pytest.mark.slow
def test_a_bad_line_is_told_and_does_not_stop_the_rest(job: Job) -> None:
    """In the order of the lines, each with its number in the file."""
    assert [each.outcome for each in job.batch.items] == ["written", "failed", "written", "written"]
    bad = job.batch.items[1]
    assert bad.error == f"line 3 of {job.prompts} is not UTF-8 text."
    assert [each.source.name for each in job.batch.items] == [
        f"prompts.txt:{line}" for line in (1, 3, 4, 5)
    ]
    assert job.batch.exit_code == 1
    assert len(job.ended) == 4


def order(folder: Path, **more: object) -> PromptOrder:
    """As a worker gets it."""
    options = {**HOW, "out": "p.png", **more}
    coding = {"tile": "auto", "overlap": None, "estimate": True, "allow_cpu": False}
    memory = {"vram": None, "reserve": None, "mode": "auto", "allocator": None}
    return PromptOrder(MINI, 2, options, memory, coding, False, 1, folder)


@pytest.mark.slow
def test_what_is_there_and_right_is_kept_and_the_rest_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one process resumes; and after its worker died, without being asked to."""
    monkeypatch.chdir(tmp_path)
    tightfit.generate(MINI, prompt=["a cat"], out="p.png", card=CARD, **HOW)
    first = Path("p-0001.png").stat().st_mtime_ns
    tasks = [
        PromptTask(number, text, Path(f"f:{number}"), Path(f"p-{number:04d}.png"))
        for number, text in ((1, "a cat"), (2, "a dog"))
    ]
    maker = Maker(order(tmp_path, resume=True), CARD)
    done = [maker(task).done for task in tasks]
    maker.close()
    assert [each.outcome for each in done] == ["kept", "written"]
    assert Path("p-0001.png").stat().st_mtime_ns == first
    again = PromptTask(1, "a cat", Path("f:1"), Path("p-0001.png"), fallen=1)
    with_state = Path("p-0002.png.resume.safetensors")
    with_state.write_text("of something else")
    other = PromptTask(2, "a fox", Path("f:2"), Path("p-0002.png"), fallen=1)
    maker = Maker(order(tmp_path), CARD)
    assert maker(again).done.outcome == "written"
    assert Path("p-0001.png").stat().st_mtime_ns == first
    assert maker(other).done.outcome == "written"
    maker.close()
    assert not with_state.exists()


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    """Names would mean something else there."""
    before = Path.cwd()
    with pytest.raises(InputError, match="does not see"):
        Maker(order(tmp_path / "nowhere"), CARD)
    assert Path.cwd() == before
    assert os.path.isabs(before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cards", "virtual:lots", "--prompts", "p.txt"], "lots"),
        (["--cards", "cuda:99", "--prompts", "p.txt"], "card `cuda:99` does not exist"),
        (["--cards", "cpu", "--prompt", "a cat"], "give them with --prompts FILE"),
        (["--cards", "cpu", "--prompts", "nowhere.txt"], "Cannot read nowhere.txt"),
        (["--cards", "cpu", "--prompts", "p.txt", "--preview", "q.png"], "drop it with --engine"),
        (["--cards", "cpu", "--prompts", "p.txt", "--trace", "t.jsonl"], "--trace watches one"),
        (["--cards", "cpu", "--prompts", "p.txt", "--width", "33"], "is no multiple of"),
        (["--prompts", "p.txt", "--address", "127.0.0.1:1"], "nothing answers there"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_is_wrong_with_all_of_it_is_said_before_ray_is_started(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, one sentence, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("a cat\n")
    command = ["generate", MINI, "-o", "p.png", "--width", "32", "--height", "32"]
    assert run([*command, "--engine", "ray", *options]) == 2
    assert said in capsys.readouterr().err
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
    assert {path.name for path in tmp_path.iterdir()} <= {"p.txt", "cache"}


def test_one_process_costs_no_ray() -> None:
    """Neither the command nor what it shares with many cards imports it."""
    code = (
        "import sys, tightfit.cli.main, tightfit.cluster.generating; from tightfit import generate;"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
