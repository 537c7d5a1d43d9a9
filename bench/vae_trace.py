"""Where the time of a call goes on the card: computing, copies up and down, waiting."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_trace import covered

from tightfit.card import Card
from tightfit.units import GIB

_UP, _DOWN, _COPY = "HtoD", "DtoH", "gpu_memcpy"
_ON_THE_CARD = ("kernel", "gpu_memset", _COPY)


@dataclass(frozen=True)
class Breakdown:
    """One call; seconds in which at least one of a kind ran, so that they may add up to more.

    Attributes:
        span: from the first to the last thing that the card did.
        compute: kernels, and copies within the card.
        up, down: copies from the host, and to it.
        wait: that no kernel ran.
        up_bytes, down_bytes: copied.
    """

    span: float
    compute: float
    up: float
    down: float
    wait: float
    up_bytes: int
    down_bytes: int

    def __str__(self) -> str:
        return (
            f"compute {self.compute:.3f} s, up {self.up:.3f} s ({self.up_bytes / GIB:.2f} GiB), "
            f"down {self.down:.3f} s ({self.down_bytes / GIB:.2f} GiB), wait {self.wait:.3f} s "
            f"of {self.span:.3f} s under a profiler"
        )


def traced(card: Card, call: Callable[[], object]) -> Breakdown | None:
    """Run `call` once more under a profiler; None where the card is none of CUDA's."""
    if card.kind != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        card.sync()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return broken_down(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def broken_down(events: Iterable[Mapping[str, Any]]) -> Breakdown | None:
    """Add up the events of a Chrome trace, microseconds in it; None where the card did nothing."""
    spans: dict[str, list[tuple[float, float]]] = {"": [], _UP: [], _DOWN: []}
    sizes = {"": 0, _UP: 0, _DOWN: 0}
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in _ON_THE_CARD:
            continue
        kind = _kind(event)
        start = float(event["ts"])
        spans[kind].append((start, start + float(event["dur"])))
        sizes[kind] += int(event.get("args", {}).get("bytes", 0))
    every = [span for each in spans.values() for span in each]
    if not every:
        return None
    seconds = {kind: covered(each) / 1e6 for kind, each in spans.items()}
    whole = (max(end for _, end in every) - min(start for start, _ in every)) / 1e6
    return Breakdown(
        span=whole,
        compute=seconds[""],
        up=seconds[_UP],
        down=seconds[_DOWN],
        wait=whole - seconds[""],
        up_bytes=sizes[_UP],
        down_bytes=sizes[_DOWN],
    )


def _kind(event: Mapping[str, Any]) -> str:
    if event["cat"] != _COPY:
        return ""
    return next((way for way in (_UP, _DOWN) if way in str(event["name"])), "")
