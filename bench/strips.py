"""A VAE in strips without the rest of the library: the runner alone, beside the whole run.

    python bench/strips.py                          # every job of `vae.py`, about 3 minutes
    python bench/strips.py 'seed encode *' --repeat 5
    python bench/strips.py --cpu                    # small networks on a virtual card

What is apart in `vae.py` (planning, ladder, report) is apart here too: each line says how long it
took to write the network down, to lay it out, to take the host memory, to run, and to give the
memory back; then what the card had reserved at most, under a cap of the job's budget, and how far
the result is from the whole one. Nothing is written to a file.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from statistics import median

import torch
from vae_jobs import FULL, MINI, Job
from vae_rows import ERROR

from tightfit.adapters.specs import find_vae, load_vae
from tightfit.card import Card, open_card
from tightfit.place import placed
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.strips.arena import HostArena
from tightfit.run.framing import to_source
from tightfit.run.strips.keeping import Lanes
from tightfit.run.strips.plans import Asked, strips_of
from tightfit.run.strips.runner import Runner
from tightfit.run.strips.scratch import scratch_of
from tightfit.run.vae import Vae
from tightfit.units import GIB, MIB, format_bytes
from tightfit.weigh import weight_bytes, weights

_SHARE = 0.97
"""Of the room: the allocator's own blocks for weights take the rest."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each job and call."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("only", nargs="?", default="*")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    for job in MINI if options.cpu else FULL:
        if fnmatch(job.name, options.only):
            card = open_card(job.card if options.cpu else "cuda:0")
            _job(job, card, options.repeat)
            gc.collect()
            card.trim()
    return 0


def _job(job: Job, card: Card, repeat: int) -> None:
    vae = load_vae(find_vae(f"random:{job.network}"), dtype=job.dtype)
    values = job.source(vae.traits)
    if job.direction == "encode":
        values, _ = to_source(values, vae.traits)
    values = values.to(job.dtype)
    started = time.perf_counter()
    asked = Asked(
        job.direction,
        (1, *values.shape[1:]),
        job.dtype,
        card.device,
        scratch_of(card.kind),
        card.allocator,
    )
    strips = strips_of(vae.module, vae.call(job.direction), asked, reset=vae.reset)
    if isinstance(strips, str):
        print(f"{job.name}: {strips}")
        return
    written = time.perf_counter()
    room = job.budget - weight_bytes(vae.module) - values.nbytes
    layout = strips.laying.within(int(room * _SHARE))
    laid = time.perf_counter()
    if layout is None:
        print(f"{job.name}: no layout in {format_bytes(room)}")
        return
    print(
        f"{job.name}: {len(strips.program.parts)} parts in {len(layout.stages)} stages, at most "
        f"{layout.most_strips} strips; written down in {written - started:.2f} s, laid out in "
        f"{laid - written:.2f} s; {layout.up / GIB:.1f} GiB up, {layout.down / GIB:.1f} GiB down"
    )
    with placed(vae.module, card.device):
        whole = _whole(job, vae, card, values, repeat)
        for _ in range(repeat):
            gc.collect()
            card.trim()
            card.reset_peaks()
            with card.cap(job.budget) if card.kind == "cuda" else nullcontext():
                start = time.perf_counter()
                with HostArena(max(1, layout.host_bytes), card) as arena:
                    taken = time.perf_counter()
                    lanes = Lanes(compute_of(card), open_lane(card), open_lane(card))
                    held = {each.path: each.tensor for each in weights(vae.module)}
                    runner = Runner(strips.program, layout, held, card.device, lanes, arena.view)
                    made = runner.run(values.to(card.device))
                    card.sync()
                    done = time.perf_counter()
                given = time.perf_counter()
            reserved, host = card.read().peak_reserved or 0, layout.host_bytes / GIB
            print(
                f"  strips {done - taken:.3f} s; host memory {host:.2f} GiB taken in "
                f"{taken - start:.3f} s, given back in {given - done:.3f} s; "
                f"{reserved / MIB:.0f} MiB reserved of {job.budget / MIB:.0f}"
                f"{_beside(made, whole, done - taken)}"
            )


def _whole(
    job: Job, vae: Vae, card: Card, values: torch.Tensor, repeat: int
) -> tuple[torch.Tensor, float] | None:
    """The whole run's result and seconds; None where it does not fit."""
    seconds: list[float] = []
    try:
        for _ in range(repeat):
            start = time.perf_counter()
            with torch.no_grad():
                made = vae.call(job.direction)(values.to(card.device)).to("cpu")
            seconds.append(time.perf_counter() - start)
            vae.reset()
    except torch.OutOfMemoryError as error:
        print(f"  whole: does not fit: {str(error).splitlines()[0][:90]}")
        del error
        vae.reset()
        gc.collect()
        card.trim()
        return None
    print(f"  whole {median(seconds):.3f} s")
    return made, median(seconds)


def _beside(made: torch.Tensor, whole: tuple[torch.Tensor, float] | None, took: float) -> str:
    if whole is None:
        return ""
    value, seconds = whole
    apart = (made.double() - value.double()).square().mean().sqrt()
    error = float(apart / value.double().square().mean().sqrt())
    words = "" if error <= ERROR else f", above {ERROR}"
    return f"; {took / seconds:.2f} x whole, rms error {error:.2e}{words}"


if __name__ == "__main__":
    sys.exit(main())
