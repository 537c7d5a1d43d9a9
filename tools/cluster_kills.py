"""Encode many clips on two virtual cards while workers, and the job itself, are killed.

    python tools/cluster_kills.py --clips 500 --every 4

First one process encodes all clips: its files are what is right. Then the command does the same
with `--engine ray`, and every few seconds one of Ray's processes, whichever, is killed; one input
kills whoever opens it. Last the command itself is killed (SIGKILL) several times and started again.
Each time all outputs have to be there once, byte for byte, with nothing beside them, and memory is
watched. Prints what it saw; exits with 1 where something was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import torch

from tightfit.media.clip_writer import ClipWriter
from tightfit.units import GIB, format_bytes

VAE, CARDS, CARD = "random:wan2.1-vae-mini", "virtual:2x2GiB", "virtual:2GiB"
POISON = "poison.mp4"
_SPARSE = GIB
"""Of the input that kills: long enough to be caught while it is read."""
_SAMPLE = 0.5


@dataclass
class Memory:
    """Bytes of all processes of a job, over time.

    Attributes:
        private: what they hold apart from what they share.
        store: touched pages of the object store.
    """

    private: list[int] = field(default_factory=list)
    store: list[int] = field(default_factory=list)

    def told(self) -> str:
        """The highest of each third of the time: flat is flat."""
        return "; ".join(
            f"{name} {', '.join(format_bytes(max(part)) for part in _thirds(series))}"
            for name, series in (("private", self.private), ("object store", self.store))
            if len(series) >= 3
        )


def clips(folder: Path, count: int) -> None:
    """Small clips of moving waves, each of its own, and no two alike."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = torch.linspace(0, 6, 32).view(1, 1, -1, 1), torch.linspace(0, 6, 32).view(1, 1, 1, -1)
    at = torch.arange(5).view(-1, 1, 1, 1) / 3
    shade = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1)
    for number in range(count):
        path = folder / f"{number:04d}.mp4"
        if not path.exists():
            with ClipWriter(path, 32, 32, Fraction(8)) as writer:
                writer.write(torch.sin(x + at + shade + number / 7) * torch.cos(y - at) / 3 + 0.5)


def command(inputs: Path, out: Path, *more: str) -> list[str]:
    """The command line of a job."""
    start = [sys.executable, "-m", "tightfit", "encode", str(inputs), "-o", str(out)]
    return [*start, "--vae", VAE, "-q", *more]


def hashes(folder: Path) -> dict[str, str]:
    """Of every file in it."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def workers(job: psutil.Process) -> list[psutil.Process]:
    """Ray's workers below a job: those that read, those on a card, the desk, and Ray's own.

    Its agents are no workers: a machine ends with them, and so does the job, which then goes on as
    after any kill of its own.
    """
    found = []
    for each in _below(job):
        with suppress(psutil.Error):
            name = (each.cmdline() or [""])[0]
            if name.startswith("ray::") and not name.strip().endswith("Agent"):
                found.append(each)
    return found


@contextmanager
def killing(job: psutil.Process, every: float, seed: int) -> Iterator[list[str]]:
    """Every few seconds one of them, whichever; and whoever opens the poison. What was killed."""
    killed: list[str] = []
    stop = threading.Event()
    dice = random.Random(seed)

    def any_of_them() -> None:
        while not stop.wait(every):
            there = workers(job)
            if there:
                victim = dice.choice(there)
                with suppress(psutil.Error):
                    name = victim.cmdline()[0]
                    victim.kill()
                    killed.append(name)

    def whoever_opens() -> None:
        while not stop.wait(0.05):
            for each in workers(job):
                if _has_open(each.pid, POISON):
                    with suppress(psutil.Error):
                        each.kill()
                        killed.append(POISON)

    threads = [threading.Thread(target=each) for each in (any_of_them, whoever_opens)]
    for thread in threads:
        thread.start()
    try:
        yield killed
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def weighed(job: psutil.Process) -> Iterator[Memory]:
    """The memory of a job's processes, sampled."""
    memory, stop = Memory(), threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE):
            private = store = 0
            for each in (job, *_below(job)):
                with suppress(psutil.Error):
                    info = each.memory_info()
                    private += info.rss - info.shared
                    if "raylet" in each.name():
                        store = max(store, info.shared)
            memory.private.append(private)
            memory.store.append(store)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield memory
    finally:
        stop.set()
        thread.join()


def differences(
    out: Path, right: dict[str, str], jobs: Sequence[int], *, failed: Sequence[str] = ()
) -> list[str]:
    """What is wrong with the outputs of the last of `jobs`, which have ended."""
    found = hashes(out)
    beside = {"manifest.jsonl"} | ({"failed.jsonl"} if failed else set())
    wrong = [f"{name} is missing" for name in right.keys() - found.keys()]
    wrong += [f"{name} is too many" for name in found.keys() - right.keys() - beside]
    wrong += [
        f"{name} differs" for name in right.keys() & found.keys() if found[name] != right[name]
    ]
    lines = _lines(out / "manifest.jsonl")
    if [f"{line['name']}.safetensors" for line in lines] != sorted(right):
        wrong.append("manifest.jsonl does not list each output once, in order")
    if any(line["out_sha256"] != right.get(f"{line['name']}.safetensors") for line in lines):
        wrong.append("manifest.jsonl has wrong hashes")
    names = [line["name"] for line in _lines(out / "failed.jsonl")]
    if names != list(failed):
        wrong.append(f"failed.jsonl names {names}, and {list(failed)} failed")
    for pid in jobs:
        left = Path(tempfile.gettempdir()).glob(f"tightfit-ray-{pid}-*")
        wrong += [f"{each} is left" for each in left]
    return wrong


def with_kills(inputs: Path, out: Path, right: dict[str, str], every: float, seed: int) -> bool:
    """A job whose workers are killed."""
    (inputs / POISON).touch()
    os.truncate(inputs / POISON, _SPARSE)
    start = time.monotonic()
    job = psutil.Popen(command(inputs, out, "--engine", "ray", "--cards", CARDS))
    with killing(job, every, seed) as killed, weighed(job) as memory:
        code = job.wait()
    (inputs / POISON).unlink()
    wrong = differences(out, right, [job.pid], failed=[Path(POISON).stem])
    if code != 1:
        wrong.append(f"the exit code is {code}, and one input failed")
    kinds = {name: killed.count(name) for name in sorted(set(killed))}
    print(f"killed {len(killed)} in {time.monotonic() - start:.0f} s: {kinds}")
    for line in _lines(out / "failed.jsonl"):
        print(line["error"])
    return _verdict("workers killed", wrong, memory)


def with_restarts(inputs: Path, out: Path, right: dict[str, str], times: int) -> bool:
    """A job that is killed itself, and started again."""
    line = command(inputs, out, "--engine", "ray", "--cards", CARDS)
    jobs = []
    for goal in range(1, times + 1):
        job = psutil.Popen(line)
        jobs.append(job.pid)
        below: list[psutil.Process] = []
        while job.poll() is None and len(list(out.glob("*.safetensors"))) < goal * len(right) // (
            times + 1
        ):
            time.sleep(0.2)
            below = _below(job)
        job.send_signal(signal.SIGKILL)
        job.wait()
        _, left = psutil.wait_procs(below, timeout=30)
        parts = len([each for each in out.iterdir() if ".part" in each.name])
        there = len(list(out.glob("[!.]*.safetensors")))
        print(
            f"killed the job with {there} outputs there; {parts} cut files, {len(left)} processes"
        )
    job = psutil.Popen(line)
    with weighed(job) as memory:
        code = job.wait()
    wrong = differences(out, right, [*jobs, job.pid])
    if code != 0:
        wrong.append(f"the exit code is {code}")
    return _verdict(f"job killed {times} times", wrong, memory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Both, and what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=500)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two kills")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--only", choices=("kills", "restarts"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="to work in; kept, and gone on with")
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        inputs, reference = folder / "in", folder / "reference"
        clips(inputs, asked.clips)
        start = time.monotonic()
        subprocess.run(command(inputs, reference, "--card", CARD), check=True)
        right = hashes(reference)
        print(f"one process: {len(right)} outputs in {time.monotonic() - start:.0f} s", flush=True)
        good = True
        if asked.only != "restarts":
            out = _empty(folder / "killed")
            good = with_kills(inputs, out, right, asked.every, asked.seed)
        if asked.only != "kills":
            out = _empty(folder / "restarted")
            good = with_restarts(inputs, out, right, asked.restarts) and good
    return 0 if good else 1


def _empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    return folder


def _verdict(what: str, wrong: list[str], memory: Memory) -> bool:
    print(f"{what}: {'right' if not wrong else '; '.join(wrong[:10])}. {memory.told()}", flush=True)
    return not wrong


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _below(job: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(job.children(recursive=True))
    return []


def _has_open(pid: int, name: str) -> bool:
    with suppress(OSError):
        for each in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(each.path).endswith(f"/{name}"):
                    return True
    return False


def _thirds(series: Sequence[int]) -> list[Sequence[int]]:
    third = len(series) // 3
    return [series[:third], series[third : 2 * third], series[2 * third :]]


if __name__ == "__main__":
    sys.exit(main())
