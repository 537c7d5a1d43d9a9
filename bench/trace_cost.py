"""What a trace costs: steps of a streamed network without one, and at each level.

    python bench/trace_cost.py                     # a stack of blocks, 12 of 24 GiB on cuda:0
    python bench/trace_cost.py --card virtual:1GiB --vram 48MiB --width 512 --blocks 12

Rounds of steps at each level follow one another, so that a clock that drifts hits all of them; the
weights are placed anew in between, since stamps for what a step did are set from the beginning. The
median step of each level counts. ``none`` is the call with nobody told, ``coarse`` what is always
on, ``fine`` what ``--trace`` asks for: every move of the allocator, and each step's copies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from provenance import machine_of, versions_of
from rows import Row, write
from torch import nn

import tightfit
from tightfit.card import open_card
from tightfit.run.fitting.fitted import Fitted
from tightfit.units import format_bytes
from tightfit.watch import Recorder
from tightfit.weigh import weight_bytes

LEVELS = ("none", "coarse", "fine")
_WARM = 4


class Block(nn.Module):
    """A feed-forward block, with a norm, of about the shape of a transformer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = self.up(self.norm(x))
        return torch.add(x, self.down(torch.nn.functional.gelu(wide)))


@contextmanager
def level(fitted: Fitted, name: str) -> Iterator[None]:
    """While inside, calls are told at that level."""
    fitted.recorder = Recorder(fine=name == "fine")
    if name != "none":
        yield
        return
    with (
        patch.object(fitted.teller, "moves", nullcontext),
        patch.object(fitted._steps, "ended", lambda *_: None),
    ):
        yield


def steps(module: nn.Module, x: torch.Tensor, count: int) -> list[float]:
    """Seconds of each, the card waited for."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        module(x)
        tightfit.fitted(module).card.sync()
        seconds.append(time.perf_counter() - start)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each level, and write the rows where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", default="cuda:0")
    parser.add_argument("--vram", default="12GiB")
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", help="of this source, where git cannot tell")
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    asked = parser.parse_args(arguments)
    dtype = torch.bfloat16 if asked.card.startswith("cuda") else torch.float32
    module = stack(asked.width, asked.blocks, dtype)
    x = torch.zeros(asked.rows, asked.width, dtype=dtype)
    seconds: dict[str, list[float]] = {name: [] for name in LEVELS}
    told = 0.0
    for _ in range(asked.rounds):
        for names in (("none", "coarse"), ("fine",)):
            terms = {"card": asked.card, "vram": asked.vram, "traces": "fine" in names}
            tightfit.fit(module, example=(x,), pack="off", **terms)
            steps(module, x, _WARM)
            for name in names:
                with level(tightfit.fitted(module), name):
                    seconds[name] += steps(module, x, asked.steps)
                    told = tightfit.fitted(module).recorder.counts.total() / asked.steps
            tightfit.unfit(module)
    job = f"streamed step, {asked.vram} of {format_bytes(weight_bytes(module))}"
    rows = [row_of(job, name, seconds[name], least=median(seconds["none"])) for name in LEVELS]
    rows[-1] = replace(rows[-1], note=f"{rows[-1].note}; {told:.0f} events a step")
    for row in rows:
        print(f"{row.job} | {row.who}: {row.seconds:.4f} s; {row.note}")
    if asked.output is not None:
        card = open_card(asked.card)
        write(asked.output, rows, machine=machine_of(card), versions=versions_of(asked.commit))


def stack(width: int, blocks: int, dtype: torch.dtype) -> nn.Module:
    """Blocks whose weights are one small number each: what they are does not matter, and drawing
    them would take minutes.
    """
    with torch.device("meta"):
        module = nn.Sequential(*(Block(width) for _ in range(blocks)))
    module = module.to(dtype).to_empty(device="cpu").eval()
    for parameter in module.parameters():
        parameter.detach().fill_(1e-4)
    return module


def row_of(job: str, level: str, seconds: Sequence[float], *, least: float) -> Row:
    """Of one level; the median step counts."""
    step = median(seconds)
    note = f"{step / least - 1:+.2%} of none"
    return Row(job, level, step, all_seconds=tuple(seconds), note=note)


if __name__ == "__main__":
    main()
