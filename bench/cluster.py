"""A folder of clips to latents: on one card, on two, and in one process without Ray.

    python bench/cluster.py                               # virtual cards; results/cluster.json
    python bench/cluster.py --cards cuda:0,cuda:1 --vae random:wan2.1-vae --size 17x480x832

The command line is run as users run it, in a process of its own, on clips that are written first.
`seconds` are those of the whole job, from the first byte to the last, starting Ray with it. The
note tells the pace between the first output and the last, which is what a long job has. Rows:

``tightfit``      `--engine ray` with one card, and with two
``one-process``   the same without Ray, on one card; the others' outputs have to be its own, byte
                  for byte

A virtual card computes on the host, so two of them show what passes through the pipeline on so many
cores, and nothing about links or cards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from provenance import machine_of, versions_of
from rows import Row, read, write

from tightfit.card import open_card
from tightfit.cluster.card_names import card_names
from tightfit.media.clip_writer import ClipWriter

RESULTS = Path(__file__).parent / "results" / "cluster.json"
_ENDINGS = (".safetensors",)


def clips(folder: Path, count: int, size: tuple[int, int, int]) -> None:
    """Moving waves with fine grain, each clip of its own."""
    frames, height, width = size
    folder.mkdir()
    y = torch.linspace(0, 12, height).view(1, 1, -1, 1)
    x = torch.linspace(0, 12, width).view(1, 1, 1, -1)
    at = torch.arange(frames).view(-1, 1, 1, 1) / 8
    shade = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1)
    grain = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(0)) / 100
    for number in range(count):
        waves = torch.sin(x + at + shade + number) * torch.cos(y - at) / 3 + 0.5
        with ClipWriter(folder / f"{number:04d}.mp4", width, height, Fraction(16)) as writer:
            writer.write((waves + grain).clamp(0, 1))


def run(inputs: Path, out: Path, asked: argparse.Namespace, *where: str) -> Row:
    """One job: its seconds, and its pace."""
    out.mkdir()
    command = [sys.executable, "-m", "tightfit", "encode", str(inputs), "-o", str(out), "-q"]
    start = time.time()
    subprocess.run(
        [*command, "--vae", asked.vae, "--dtype", asked.dtype, *where],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(asked.threads)},
    )
    seconds = time.time() - start
    times = sorted(path.stat().st_mtime for path in out.iterdir() if path.suffix in _ENDINGS)
    pace = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
    note = f"{len(times)} clips of {asked.size}; {pace:.2f} a second once they come; "
    note += f"the first after {times[0] - start:.1f} s; {' '.join(where)}"
    return Row("", "", seconds, all_seconds=(seconds,), note=note)


def same(out: Path, reference: Path) -> bool:
    """Whether every output is that of one process, byte for byte."""
    names = sorted(path.name for path in reference.iterdir())
    return all((out / name).read_bytes() == (reference / name).read_bytes() for name in names)


def measured(asked: argparse.Namespace) -> list[Row]:
    """Rows of all jobs, from one run."""
    names = card_names(asked.cards, count=torch.cuda.device_count())
    size = tuple(int(part) for part in asked.size.split("x"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        clips(folder / "in", asked.clips, (size[0], size[1], size[2]))
        alone = run(folder / "in", folder / "alone", asked, "--card", names[0])
        rows = [_row(alone, "encode 1 card", "one-process")]
        for count in range(1, len(names) + 1):
            out = folder / f"out{count}"
            cards = ["--engine", "ray", "--cards", ",".join(names[:count])]
            row = _row(
                run(folder / "in", out, asked, *cards),
                f"encode {count} card{'s' if count > 1 else ''}",
                "tightfit",
                bit_equal=same(out, folder / "alone"),
            )
            rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each way, and write the rows among those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", default="virtual:2x4GiB")
    parser.add_argument("--vae", default="random:wan2.1-vae-mini")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--size", default="9x96x128", metavar="FRAMESxHEIGHTxWIDTH")
    parser.add_argument("--threads", type=int, default=1, help="of arithmetic, for each card")
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    rows = measured(asked)
    for row in rows:
        equal = "" if row.bit_equal is None else f"; bit-equal: {row.bit_equal}"
        print(f"{row.job} | {row.who}: {row.seconds:.1f} s; {row.note}{equal}")
    new = {(row.job, row.who) for row in rows}
    kept = []
    if asked.output.exists():
        kept = [row for row in read(asked.output)[0] if (row.job, row.who) not in new]
    card = card_names(asked.cards, count=torch.cuda.device_count())[0]
    versions: dict[str, Any] = {**versions_of(asked.commit), "ray": version("ray")}
    write(asked.output, [*kept, *rows], machine=machine_of(open_card(card)), versions=versions)


def _row(measured: Row, job: str, who: str, *, bit_equal: bool | None = None) -> Row:
    return Row(
        job,
        who,
        measured.seconds,
        all_seconds=measured.all_seconds,
        bit_equal=bit_equal,
        note=measured.note,
    )


if __name__ == "__main__":
    main()
