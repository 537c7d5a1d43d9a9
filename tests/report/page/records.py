"""Hand-made traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightfit.report.trace_file import Trace

MIB = 2**20
GIB = 2**30
Events = list[dict[str, Any]]

FLOOR = 1_101 * MIB
FAILED_PEAK = 2_987 * MIB
REFUSED = 432 * MIB
BUDGET = 3_072 * MIB
OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total "
    "capacity of 139.81 GiB of which 85.00 MiB is free."
)


def of(events: Sequence[dict[str, Any]], **facts: Any) -> Trace:
    """A trace of these events, sorted by time, whose peaks are those of its samples."""
    ordered = tuple(sorted(events, key=lambda event: float(event["t"])))
    samples = [event for event in ordered if event["event"] == "memory"]
    peaks = {
        f"peak_{figure}": max((event[figure] for event in samples), default=None)
        for figure in ("allocated_bytes", "reserved_bytes")
    }
    header = {"tightfit_trace": 2, **peaks, **facts.pop("header", {})}
    return Trace(header, ordered, **{**peaks, **facts})


def event(t: float, kind: str, /, **figures: Any) -> dict[str, Any]:
    """One event."""
    return {"t": t, "event": kind, **figures}


def memory(t: float, allocated: int, reserved: int | None = None) -> dict[str, Any]:
    """One sample."""
    reserved = allocated if reserved is None else reserved
    return event(t, "memory", allocated_bytes=allocated, reserved_bytes=reserved)


def seed_job(*, held_after_oom: int = FLOOR) -> Events:
    """A whole encode that is refused 432 MiB, then twelve tiles of 512 by 512."""
    events = [
        memory(0.0, 0),
        event(0.0, "stage", stage="load"),
        event(0.01, "attempt", stage="load", rung="weights", held_bytes=0),
        memory(0.4, 254 * MIB, 300 * MIB),
        event(0.5, "done", stage="load", rung="weights"),
        memory(0.6, FLOOR, 1_140 * MIB),
        event(0.7, "baseline", bytes=FLOOR),
        event(0.75, "stage", stage="encode"),
        event(0.8, "attempt", stage="encode", rung="whole", held_bytes=FLOOR),
        memory(1.0, 1_800 * MIB, 1_900 * MIB),
        memory(1.4, 2_200 * MIB, 2_400 * MIB),
        memory(1.6, 1_700 * MIB, 2_400 * MIB),
        memory(2.0, FAILED_PEAK, 3_052 * MIB),
        memory(2.05, 2_960 * MIB, 3_052 * MIB),
        memory(2.2, held_after_oom, 3_052 * MIB),
        event(2.3, "oom", stage="encode", rung="whole", text=OOM),
        memory(2.4, held_after_oom, held_after_oom + 40 * MIB),
        event(2.45, "recovered", held_bytes=held_after_oom, baseline_bytes=FLOOR),
        event(2.46, "skipped", stage="encode", rung="strips", reason="needs 3.4 GiB"),
        event(2.5, "attempt", stage="encode", rung="tiles 512x512", held_bytes=held_after_oom),
    ]
    for tile in range(4):
        start = 2.5 + 0.6 * tile
        for frame in range(4):
            at = start + 0.14 * frame
            events.append(memory(at + 0.05, held_after_oom + 900 * MIB, held_after_oom + GIB))
            events.append(memory(at + 0.10, held_after_oom, held_after_oom + GIB))
        events.append(event(start + 0.6, "tile", rung="tiles 512x512", done=tile + 1, total=4))
    events += [
        event(5.0, "done", stage="encode", rung="tiles 512x512"),
        memory(5.1, 0),
        event(5.2, "end", held_bytes=0),
        event(5.21, "report", report=report()),
    ]
    return events


def report(**facts: Any) -> dict[str, Any]:
    """The report of `seed_job`."""
    whole = {
        "stage": "encode",
        "rung": "whole",
        "outcome": "oom",
        "reason": OOM,
        "tile": None,
        "peak_bytes": FAILED_PEAK,
        "peak_reserved_bytes": 3_052 * MIB,
        "held_before_bytes": FLOOR,
    }
    tiles = {
        "stage": "encode",
        "rung": "tiles 512x512",
        "outcome": "ok",
        "tile": [13, 512, 512],
        "peak_bytes": FLOOR + 900 * MIB,
        "held_before_bytes": FLOOR,
        "error_bound": 0.02,
    }
    return {
        "version": 1,
        "command": "encode",
        "input": {"kind": "clip", "frames": 13, "width": 768, "height": 768},
        "model": {"name": "AutoencoderKLWan"},
        "card": {"name": "cuda:0", "kind": "cuda", "allocator": "native"},
        "budget_bytes": BUDGET,
        "estimate": {"peak_bytes": 5_100 * MIB, "source": "a dry run"},
        "ledger": {
            "weights_resident": {"bytes": 254 * MIB, "source": "measured"},
            "input": {"bytes": FLOOR - 254 * MIB, "source": "measured"},
            "activations": {"bytes": 1_886 * MIB, "source": "measured"},
            "slack": {"bytes": 65 * MIB, "source": "measured"},
            "library_workspaces": {"bytes": 32 * MIB, "source": "table"},
            "context": {"bytes": 480 * MIB, "source": "measured"},
            "held_by_others": {"bytes": None, "source": "measured"},
        },
        "attempts": [whole, tiles],
        "before_bytes": 0,
        "baseline_bytes": FLOOR,
        "peak_bytes": FAILED_PEAK,
        "peak_reserved_bytes": 3_052 * MIB,
        "after_bytes": 0,
        "adjusted": [],
        "warnings": ["tiles 512x512: close to a whole encode, but not the same"],
        **facts,
    }


def streamed_job(*, blocks: int = 24, steps: int = 12, gap: float = 0.06) -> Events:
    """A denoiser of 320 MiB blocks on 6 GiB: every second one is streamed, every fifth packed."""
    size = 320 * MIB
    events: Events = [
        event(0.0, "stage", stage="load"),
        event(0.0, "plan", name="dit", budget_bytes=6 * GIB, ledger=_planned(size)),
        memory(0.0, 0),
        event(0.0, "others", bytes=2 * GIB),
    ]
    held = 2 * size
    for n in range(blocks):
        state = "streamed" if n % 2 else "packed" if n % 5 == 0 else "resident"
        held += 0 if state == "streamed" else size * 3 // 4 if state == "packed" else size
        t = 0.05 * (n + 1)
        figures = {"reserved_bytes": held + 40 * MIB, "allocated_bytes": held}
        name = f"transformer_blocks.{n}"
        events.append(memory(t, held, held + 40 * MIB))
        events.append(
            event(t, "placed", n=n, block=name, network="dit", bytes=size, state=state, **figures)
        )
    begin = 0.05 * (blocks + 1)
    events.append(event(begin, "stage", stage="denoise"))
    for step in range(steps):
        t = begin + 0.27 * (step + 1)
        rising = 700 * MIB
        events.append(memory(t - 0.2, held + rising, held + rising + 120 * MIB))
        events.append(memory(t - 0.01, held, held + rising + 120 * MIB))
        late = gap if step == 4 else 0.0
        events.append(event(t, "streamed_step", **_step(blocks, size, late)))
        events.append(event(t, "step", done=step + 1, total=steps))
        if step == steps // 2:
            events.append(event(t + 0.01, "others", bytes=3 * GIB))
            events.append(
                event(t + 0.02, "evicted", network="dit", block="transformer_blocks.2", bytes=size)
            )
            events.append(event(t + 0.03, "wait", reason="another program took 1 GiB", seconds=0.1))
    end = begin + 0.27 * (steps + 1)
    for n in range(40):
        at = begin + 0.05 * n
        events.append(
            event(at, "allocate", bytes=700 * MIB, address=n, by="attention.py:88 forward")
        )
        events.append(event(at + 0.04, "free", bytes=700 * MIB, address=n))
    events.append(event(end, "rests", network="dit", bytes=held))
    events.append(memory(end, 30 * MIB, 64 * MIB))
    events.append(event(end + 0.1, "end", held_bytes=30 * MIB))
    events.append(
        event(
            end + 0.1,
            "leak",
            bytes=30 * MIB,
            shape=[1, 96, 4, 48, 48],
            dtype="torch.float16",
            device="cuda:0",
            hold="module attribute",
            site="vae.py:801 forward",
            chain=["pipe.vae", "_feat_map[3]", "tensor"],
        )
    )
    return events


def _planned(size: int) -> dict[str, int | None]:
    return {
        "weights_resident": 11 * size,
        "ring": 2 * size,
        "activations": 650 * MIB,
        "slack": 160 * MIB,
        "context": None,
        "host_masters": 24 * size,
    }


def _step(blocks: int, size: int, gap: float) -> dict[str, Any]:
    """Copies of 18 ms each beside 10 ms of compute a block, the fifth one late by `gap` seconds."""
    uses, at, copied = [], 0.0, -0.012
    for n in range(blocks):
        if n % 2 == 0:
            at += 0.010
            continue
        begin = copied + (gap if n == 9 else 0.0)
        copied = begin + 0.018
        start = max(at, copied)
        uses.append(
            {
                "name": f"transformer_blocks.{n}",
                "moved_bytes": size,
                "copy_start": begin,
                "copy_end": copied,
                "reached": at,
                "start": start,
                "end": start + 0.010,
            }
        )
        at = start + 0.010
    computing, copying = 0.010 * blocks, 0.018 * len(uses)
    limit = max(computing, copying)
    return {
        "network": "dit",
        "seconds": at,
        "limit_seconds": limit,
        "times_limit": at / limit,
        "copy_seconds": copying,
        "compute_seconds": computing,
        "stall_ms": 1000 * sum(use["start"] - use["reached"] for use in uses),
        "blocks": uses,
    }
