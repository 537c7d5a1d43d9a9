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
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import median
from unittest.mock import patch

import torch
from torch import nn

import tightfit
from tightfit.run.fitting.fitted import Fitted
from tightfit.watch import Recorder

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
    """Measure, and print a line of JSON for each level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--card", default="cuda:0")
    parser.add_argument("--vram", default="12GiB")
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    dtype = torch.bfloat16 if asked.card.startswith("cuda") else torch.float32
    torch.manual_seed(0)
    module = nn.Sequential(*(Block(asked.width).to(dtype) for _ in range(asked.blocks))).eval()
    x = torch.zeros(asked.rows, asked.width, dtype=dtype)
    seconds: dict[str, list[float]] = {name: [] for name in LEVELS}
    told = 0
    for _ in range(asked.rounds):
        for names in (("none", "coarse"), ("fine",)):
            terms = {"card": asked.card, "vram": asked.vram, "traces": "fine" in names}
            tightfit.fit(module, example=(x,), pack="off", **terms)
            steps(module, x, _WARM)
            for name in names:
                with level(tightfit.fitted(module), name):
                    seconds[name] += steps(module, x, asked.steps)
                    told = tightfit.fitted(module).recorder.counts.total()
            tightfit.unfit(module)
    least = median(seconds["none"])
    for name in LEVELS:
        step = median(seconds[name])
        row = {"who": name, "seconds": step, "over_none": step / least - 1}
        print(json.dumps(row | ({"events_a_step": told / asked.steps} if name == "fine" else {})))


if __name__ == "__main__":
    main()
