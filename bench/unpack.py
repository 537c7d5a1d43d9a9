"""How fast weights are packed and unpacked, against a copy on the same card in the same process.

    python bench/unpack.py                          # a table
    python bench/unpack.py -o bench/results/unpack.json
    python bench/unpack.py --search                 # also other shapes of the kernel, at 256 MiB
    python bench/unpack.py --cpu                    # the same steps, small, no GPU

Rates of unpacking are of bytes moved: packed bytes read and bf16 bytes written, as a copy reads and
writes. Buffers take turns, so that none is still in a cache, and everything is queued behind a
kernel that sleeps, so that the host holds nothing up; what a call costs the host is told apart.
Rates of packing are of raw bytes, waits included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from provenance import machine_of, versions_of
from rows import Row, write

from tightfit.card import Card, open_card
from tightfit.place.packing.codec import Recipe, decode, encode
from tightfit.units import MIB, format_bytes

SIZES = (8 * MIB, 64 * MIB, 256 * MIB, 700 * MIB)
SMALL = (MIB, 4 * MIB)
SEARCHED = 256 * MIB
BITS = (12, 11)
_COLD = 256 * MIB
"""Buffers that take turns are as much together, so that none is found in a cache."""
_PASSES = 7
_SLEEP = 20_000_000
"""Clock cycles, some 10 ms."""


@dataclass(frozen=True)
class Clock:
    """Times what is queued on a card.

    Attributes:
        card: whose current queue it is.
    """

    card: Card

    def each(self, calls: Sequence[Callable[[], object]]) -> tuple[float, float]:
        """Seconds a call takes on the card, and on the host: medians over passes of all calls."""
        cuda = self.card.kind == "cuda"
        for call in calls:
            call()
        self.card.sync()
        there, here = [], []
        for _ in range(_PASSES):
            if cuda:
                torch.cuda._sleep(_SLEEP)  # type: ignore[no-untyped-call]
                start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                start.record()
            began = time.perf_counter()
            for call in calls:
                call()
            here.append((time.perf_counter() - began) / len(calls))
            if cuda:
                end.record()
                self.card.sync()
                there.append(start.elapsed_time(end) / 1000 / len(calls))
        return median(there or here), median(here)

    def whole(self, call: Callable[[], object]) -> float:
        """Seconds that `call` takes until the card is done: the median."""
        times = []
        for _ in range(_PASSES // 2 + 1):
            self.card.sync()
            began = time.perf_counter()
            call()
            self.card.sync()
            times.append(time.perf_counter() - began)
        return median(times)


def weights(size: int, card: Card) -> torch.Tensor:
    """bf16 of `size` bytes: Gaussian, each row of 4,096 with a deviation of its own."""
    count, draw = size // 2, card.generator(0)
    rows = torch.randn(-(-count // 4096), 1, generator=draw, device=card.device)
    made = torch.empty(count, dtype=torch.bfloat16, device=card.device)
    made.normal_(generator=draw)
    made *= (0.02 * 2**rows).bfloat16().expand(-1, 4096).reshape(-1)[:count]
    return made


def measure(size: int, card: Card, *, search: bool) -> list[Row]:
    """Rows of one size: a copy, and per format packing and unpacking."""
    clock, values = Clock(card), weights(size, card)
    turns = max(1, -(-_COLD // size)) if card.kind == "cuda" else 1
    outs = [torch.empty_like(values) for _ in range(turns)]
    sources = [values.clone() for _ in range(turns)]
    copying, host = clock.each([partial(a.copy_, b) for a, b in zip(outs, sources, strict=True)])
    rate = 2 * size / copying
    job = format_bytes(size).replace(" ", "")
    rows = [Row(f"unpack {job}", "copy", copying, note=_told(2 * size, copying, host))]
    del sources
    for bits in BITS:
        who = "tightfit" if bits == 12 else f"tightfit-{bits}"
        card.reset_peaks()
        before = card.read().allocated
        packed = encode(values, bits=bits)
        if packed is None:
            raise RuntimeError(f"weights of {job} did not shrink")
        stored, recipe = packed
        peak = card.read().peak_allocated
        packing = clock.whole(partial(encode, values, bits=bits))
        rows.append(
            Row(
                f"pack {job}",
                who,
                packing,
                peak_allocated_bytes=None if peak is None or before is None else peak - before,
                note=f"{size / packing / 1e9:.2f} GB/s of raw bytes",
            )
        )
        moved = recipe.bytes + size
        each = [stored.clone() for _ in range(turns)]
        began = time.perf_counter()
        decode(each[0], recipe, outs[0])
        card.sync()
        first = time.perf_counter() - began
        seconds, host = clock.each(
            [partial(decode, a, recipe, b) for a, b in zip(each, outs, strict=True)]
        )
        same = all(torch.equal(out.view(torch.int16), values.view(torch.int16)) for out in outs)
        note = f"{_told(moved, seconds, host)}; {recipe.bytes / size:.4f} of the bytes"
        note += f"; the first call {first:.2f} s"
        rows.append(
            Row(
                f"unpack {job}", who, seconds, limit_seconds=moved / rate, bit_equal=same, note=note
            )
        )
        if search and size == SEARCHED:
            rows += _searched(job, clock, each, recipe, outs)
    return rows


def _searched(
    job: str, clock: Clock, stored: list[torch.Tensor], recipe: Recipe, outs: list[torch.Tensor]
) -> list[Row]:
    """Other shapes of the kernel."""
    from tightfit.place.packing import kernel

    rows, moved = [], recipe.bytes + 2 * recipe.values
    for shares in (1, 2, 4, 8) if recipe.bits == 12 else (1,):
        for warps in (1, 2, 4, 8, 16):
            way = partial(kernel.decode, shares=shares, warps=warps)
            seconds, host = clock.each(
                [partial(way, a, recipe, b) for a, b in zip(stored, outs, strict=True)]
            )
            who = f"{recipe.bits} bits, {shares} shares, {warps} warps"
            rows.append(Row(f"unpack {job}", who, seconds, note=_told(moved, seconds, host)))
    return rows


def _told(moved: int, seconds: float, host: float) -> str:
    return f"{moved / seconds / 1e12:.3f} TB/s moved; {host * 1e6:.0f} us of the host"


def table(rows: Sequence[Row]) -> str:
    """One line a row."""
    lines = []
    for row in rows:
        share = (
            ""
            if not row.limit_seconds or not row.seconds
            else (f"{row.limit_seconds / row.seconds:.2f} of a copy's rate; ")
        )
        wrong = "NOT EQUAL; " if row.bit_equal is False else ""
        milli = (row.seconds or 0) * 1000
        lines.append(f"{row.job:16} {row.who:28} {milli:9.4f} ms  {wrong}{share}{row.note}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every size, print a table, and write the rows where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="a file for the rows")
    parser.add_argument("--search", action="store_true", help="try other shapes of the kernel")
    parser.add_argument("--cpu", action="store_true", help="rehearse on the CPU")
    parser.add_argument("--commit", help="that is measured, where there is no repository")
    options = parser.parse_args(arguments)
    card = open_card("cpu" if options.cpu else "cuda:0")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for size in SMALL if options.cpu else SIZES:
        found = measure(size, card, search=options.search and not options.cpu)
        print(table(found), flush=True)
        rows += found
        card.trim()
    if options.output:
        write(options.output, rows, machine=machine_of(card), versions=versions_of(options.commit))
    return 1 if any(row.bit_equal is False for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
