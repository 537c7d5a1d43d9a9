"""Refusing a job that cannot fit before its weights are read."""

from __future__ import annotations

import torch

from tightfit.card import Card
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Rung
from tightfit.run.vae import Direction, Vae
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibrations


def preflight(
    outline: Vae,
    direction: Direction,
    card: Card,
    request: Request,
    shape: tuple[int, ...],
    *,
    calibrations: Calibrations | None = None,
) -> None:
    """Raise `MemoryShortage` if weights and the smallest rung are above the room.

    Args:
        outline: the VAE on the meta device.
        shape: of the source, [B,C,…].
        calibrations: those of the job; without them it might be let through, and this not.
    """
    if not request.estimate or request.allow_cpu or request.evict is not None:
        return
    job = Job(outline, direction, card, request, calibrations=calibrations or Calibrations())
    ladder = job.ladder()
    source = torch.empty(shape, dtype=outline.dtype, device="meta")
    weights = weight_bytes(outline.module)
    room = ladder.room()
    rungs = job.rungs(source)
    tiles = list(rungs.in_order())[-1]
    inside = tiles.need()
    if inside is None or weights + inside <= room:
        return
    least, name = inside, tiles.name
    if request.wish.mode != "size":
        for way in job.strips(rungs, lambda: max(0, room - weights))():
            need = way.need()
            if need is None or way.barred() is not None:
                continue
            if weights + need <= room:
                return
            if need < least:
                least, name = need, way.name
    lowest = Rung(name, tiles.run, need=lambda: weights + least)
    raise ladder.shortage(job.stage(source), lowest, [])
