"""Two cards in one process: work that they share, one that streams from the other, D01 and D06.

    python bench/two_cards.py                          # two GPUs; merged into results/cluster.json
    python bench/two_cards.py --only 'encode*'         # some jobs
    python bench/two_cards.py --cpu                    # the same steps on virtual cards, no file

True sizes and random weights. The jobs:

``encode 1 card``, ``encode 2 cards``
    the same clips through Wan's VAE, each by `tightfit.encode`: one after another, and by a thread
    for each card. `seconds` are of all clips; what one card took, halved, is the limit of two.
``flux.2-dev step 24GiB overflow on a second card``
    one step of the transformer at 1024x1024 with 24 GiB of card 0. ``resident`` has all of card 0;
    ``tightfit`` has its overflow on card 1, copied from there; ``tightfit-host`` in the host's
    memory. `limit_seconds` is the larger of the resident step and of the bytes copied by the rate
    of their way, as measured in this run.
``second card alone (D01)``
    every kind of job on card 1, each in a process of its own: card 0 has no context and no bytes.
``one file on two cards (D06)``
    the same weights streamed on both: `peak_reserved_bytes` is the host's memory for masters, and
    `predicted_bytes` the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from held_card import reside
from provenance import machine_of, versions_of
from rows import Row, write
from safetensors.torch import save_file
from stream_run import enliven
from stream_steps import Timed, inputs_of, same_bits, timed
from stream_weights import bring_home
from torch import nn

import tightfit
from tightfit.adapters import find_vae, load_vae
from tightfit.adapters.parts import find_parts
from tightfit.api.fitting import link_of
from tightfit.card import Card
from tightfit.card.opener import open_cards
from tightfit.plan.size import Size
from tightfit.units import KIB, format_bytes

RESULTS = Path(__file__).parent / "results" / "cluster.json"
ROOT = Path(__file__).parents[1]
RANDOM = "random weights"
ONE, TWO = "encode 1 card", "encode 2 cards"
ALONE, FILE = "second card alone (D01)", "one file on two cards (D06)"


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        cards: their name, where they are virtual.
        vae, clip, clips: what is encoded: [T,3,H,W], and how many.
        denoiser, size, budget: of the step, and what may be used of card 0.
        width, layers: of the file that two cards have.
    """

    cards: str
    vae: str
    clip: tuple[int, ...]
    clips: int
    dtype: str
    denoiser: str
    size: Size
    budget: str
    width: int
    layers: int

    @property
    def step(self) -> str:
        """The job's name."""
        model = self.denoiser.removeprefix("random:").partition("/")[0]
        return f"{model} step {self.budget} overflow on a second card"

    @property
    def jobs(self) -> tuple[str, ...]:
        """In order."""
        return ONE, TWO, self.step, ALONE, FILE


FULL = Scale(
    "cuda:0,cuda:1",
    "random:wan2.1-vae",
    (33, 3, 480, 832),
    24,
    "bfloat16",
    "random:flux.2-dev/transformer",
    Size(1024, 1024),
    "24GiB",
    8192,
    16,
)
MINI = Scale(
    "virtual:2x1GiB,link=25GB,peer=200GB",
    "random:wan2.1-vae-mini",
    (5, 3, 32, 32),
    4,
    "float32",
    "random:flux.2-dev-mini/transformer",
    Size(64, 64),
    "5MiB",
    256,
    16,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs, each written when it is done, and print their rows."""
    options = _parser().parse_args(arguments)
    scale = MINI if options.cpu else FULL
    jobs = [job for job in scale.jobs if fnmatch(job, options.only)]
    if not jobs:
        print(f"no job is called {options.only}", file=sys.stderr)
        return 1
    if not options.cpu and torch.cuda.device_count() < 2:
        print("two CUDA devices are needed; --cpu rehearses on virtual cards", file=sys.stderr)
        return 1
    output = options.output or (None if options.cpu else RESULTS)
    rows: list[Row] = []
    for row in _rows(jobs, scale):
        rows.append(row)
        print(_said(row), flush=True)
        if output is not None:
            _keep(output, rows, open_cards(scale.cards)[0], options.commit)
    return 0 if all(row.completed for row in rows) else 1


def _rows(jobs: Sequence[str], scale: Scale) -> Iterator[Row]:
    cards = open_cards(scale.cards)
    if ALONE in jobs:  # before this process has a context anywhere
        yield alone(cards)
    if ONE in jobs or TWO in jobs:
        yield from encode(cards, scale)
    if scale.step in jobs:
        yield from step(cards, scale)
    if FILE in jobs:
        yield one_file(cards, scale)


# Work shared between two cards


def encode(cards: Sequence[Card], scale: Scale) -> Iterator[Row]:
    """The same clips by one card, and by two."""
    dtype = getattr(torch, scale.dtype)
    vaes = [load_vae(find_vae(scale.vae), dtype=dtype) for _ in cards]
    draw = torch.Generator().manual_seed(0)
    clips = [
        torch.randint(0, 256, scale.clip, generator=draw, dtype=torch.uint8)
        for _ in range(scale.clips)
    ]

    def coded(at: int, which: Sequence[int], found: dict[int, torch.Tensor]) -> None:
        for each in which:
            found[each] = tightfit.encode(clips[each], vae=vaes[at], card=cards[at]).value.latent

    for at in range(len(cards)):
        coded(at, [0, 1], {})  # libraries, calibration and kernels are not counted
    first: dict[int, torch.Tensor] = {}
    alone_took, peaks = _measured(cards[:1], lambda: coded(0, range(len(clips)), first))
    shape = "x".join(str(scale.clip[axis]) for axis in (0, 2, 3))
    about = f"{len(clips)} clips of {shape}, {scale.vae}, {scale.dtype}, {RANDOM}"
    yield _encoded(ONE, alone_took, None, peaks, None, f"{about}; {_speed(clips, alone_took)}")
    second: dict[int, torch.Tensor] = {}

    def both() -> None:
        shares = [range(at, len(clips), len(cards)) for at in range(len(cards))]
        threads = [
            threading.Thread(target=coded, args=(at, share, second))
            for at, share in enumerate(shares)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    took, peaks = _measured(cards, both)
    same = len(second) == len(clips) and all(same_bits(second[at], first[at]) for at in first)
    note = f"{about}; {_speed(clips, took)}, {alone_took / took:.2f} x one card"
    yield _encoded(TWO, took, alone_took / len(cards), peaks, same, note)


def _encoded(
    job: str,
    seconds: float,
    limit: float | None,
    peaks: tuple[int | None, int | None],
    same: bool | None,
    note: str,
) -> Row:
    return Row(
        job,
        "tightfit",
        seconds=seconds,
        limit_seconds=limit,
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        bit_equal=same,
        note=note,
    )


def _measured(
    cards: Sequence[Card], work: Callable[[], None]
) -> tuple[float, tuple[int | None, int | None]]:
    """Seconds, and the highest of allocated and of reserved on any of `cards`."""
    for card in cards:
        card.trim()
        card.reset_peaks()
        card.sync()
    start = time.perf_counter()
    work()
    for card in cards:
        card.sync()
    seconds = time.perf_counter() - start
    looks = [card.read() for card in cards]
    allocated = [each.peak_allocated for each in looks if each.peak_allocated is not None]
    reserved = [each.peak_reserved for each in looks if each.peak_reserved is not None]
    return seconds, (max(allocated, default=None), max(reserved, default=None))


def _speed(clips: Sequence[torch.Tensor], seconds: float) -> str:
    return f"{len(clips) / seconds:.2f} clips a second"


# One card that streams from the other


def step(cards: Sequence[Card], scale: Scale) -> Iterator[Row]:
    """Resident, from the second card, and from the host."""
    one, two = cards[0], cards[1]
    (part,) = find_parts(scale.denoiser)
    network = reside(part, one, dtype=torch.bfloat16)
    module = network.module
    enliven(module)
    inputs = inputs_of(part, network.outline, scale.size, dtype=torch.bfloat16, device=one.device)
    one.reset_peaks()
    done = timed(one, inputs.into(module))
    yield _stepped(scale.step, "resident", done, done, one, limit=done.typical)
    bring_home(module)
    gc.collect()
    one.trim()
    link = link_of(one).pinned
    for who, overflow in (("tightfit", two), ("tightfit-host", None)):
        for card in cards:
            card.reset_peaks()
        tightfit.fit(module, card=one, vram=scale.budget, overflow=overflow)
        try:
            now = timed(one, inputs.into(module))
            kept = tightfit.fitted(module)
            streamed = kept.session.residency.streamed_bytes
            peer = kept.terms.peer.per_second
            near = kept.parked / peer if peer else 0.0
            rate = kept.terms.supply.link.per_second or link
            copying = near + ((streamed - kept.parked) / rate if rate else 0.0)
            told = [
                f"{format_bytes(streamed)} streamed",
                f"{format_bytes(kept.parked)} of it on {two.name}" if overflow else "from the host",
                "" if peer is None else f"peer {peer / 1e9:.1f} GB/s",
                "" if rate is None else f"link {rate / 1e9:.1f} GB/s",
                *kept.notes,
                f"peak reserved on the second card {format_bytes(two.read().peak_reserved or 0)}",
            ]
            predicted = kept.plan.peak_allocated, kept.plan.peak_reserved
            limit = max(done.typical, copying)
            yield _stepped(
                scale.step,
                who,
                now,
                done,
                one,
                limit=limit,
                budget=kept.terms.supply.budget,
                predicted=predicted,
                note="; ".join(each for each in told if each),
            )
        finally:
            tightfit.unfit(module)
        gc.collect()
        for card in cards:
            card.trim()


def _stepped(
    job: str,
    who: str,
    now: Timed,
    whole: Timed,
    card: Card,
    *,
    limit: float,
    budget: int | None = None,
    predicted: tuple[int | None, int | None] = (None, None),
    note: str = "",
) -> Row:
    looked = card.read()
    return Row(
        job,
        who,
        seconds=now.typical,
        limit_seconds=limit,
        budget_bytes=budget,
        peak_reserved_bytes=looked.peak_reserved,
        peak_allocated_bytes=looked.peak_allocated,
        bit_equal=same_bits(now.late, whole.late) and same_bits(now.early, whole.late),
        rms_error=None,
        predicted_bytes=predicted[0],
        predicted_reserved_bytes=predicted[1],
        note="; ".join(each for each in (note, RANDOM) if each),
        all_seconds=now.seconds,
    )


# Cases


def alone(cards: Sequence[Card]) -> Row:
    """D01: on virtual cards here, on real ones in a process for each job."""
    sys.path.insert(0, str(ROOT))
    from tests.cases.d01 import JOBS

    failed: list[str] = []
    start = time.perf_counter()
    for name, job in JOBS.items():
        if cards[0].kind == "cuda":
            command = [sys.executable, "-m", "tests.cases.d01", name]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.append(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
            continue
        before: Any = cards[0]
        asked = before.allocations
        job(cards[1])
        if before.allocations != asked:
            failed.append(f"{name}: something was asked of the first card")
    names = ", ".join(JOBS)
    note = "; ".join(failed) or f"{names}: nothing on the first card"
    return Row(
        ALONE,
        "tightfit",
        seconds=time.perf_counter() - start,
        completed=not failed,
        note=note,
    )


def one_file(cards: Sequence[Card], scale: Scale) -> Row:
    """D06."""
    x = torch.randn(8, scale.width, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        save_file(_layers(scale, torch.device("cpu")).state_dict(), path)
        size = path.stat().st_size
        before, most = _masters(), 0
        start = time.perf_counter()
        with tightfit.Session(cards=cards) as session, torch.no_grad():
            values = []
            for at in range(len(cards)):
                module = tightfit.load_weights(_layers(scale, torch.device("meta")), path)
                session.fit(module, card=at, mode="none")
                values += [module(x).cpu(), module(x).cpu()]
                most = max(most, _masters() - before)
        seconds = time.perf_counter() - start
    largest = 4 * scale.width**2
    return Row(
        FILE,
        "tightfit",
        seconds=seconds,
        peak_reserved_bytes=most,
        predicted_bytes=size,
        bit_equal=all(torch.equal(value, values[0]) for value in values),
        completed=most <= size + largest,
        note=f"a file of {format_bytes(size)}, the largest tensor {format_bytes(largest)}",
    )


def _layers(scale: Scale, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    with device:
        layers = (nn.Linear(scale.width, scale.width, bias=False) for _ in range(scale.layers))
        return nn.Sequential(*layers).eval()


def _masters() -> int:
    """Bytes of memory of our own that masters lie in: mappings that belong to no file."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * KIB
    return 0


# Rows


def _said(row: Row) -> str:
    seconds = "" if row.seconds is None else f"{row.seconds:.3f} s"
    limit = "" if row.limit_seconds is None else f" (limit {row.limit_seconds:.3f})"
    same = {None: "", True: ", bit-equal", False: ", **other bits**"}[row.bit_equal]
    return f"{row.job} | {row.who}: {seconds}{limit}{same}; {row.note}"


def _keep(path: Path, rows: Sequence[Row], card: Card, commit: str | None) -> None:
    """Beside the rows of other jobs that are in the file."""
    others: list[dict[str, Any]] = []
    mine = {row.job for row in rows}
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        others = [row for row in content["rows"] if row["job"] not in mine]
    write(path, rows, machine=machine_of(card), versions=versions_of(commit))
    if others:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["rows"] = [*others, *content["rows"]]
        part = path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cpu", action="store_true", help="small ones on virtual cards")
    parser.add_argument("--only", default="*", help="jobs such as 'encode*'")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {RESULTS.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
