"""One process of `vae.py`: all rows of one job, side by side on one card."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from rows import Try
from stream_steps import rms, same_bits
from torch import nn
from vae_calls import CALLS, Timed, in_a_thread, timed
from vae_jobs import EVERY, OURS, TILED, WHOLE, Job
from vae_peers import plain, tiled
from vae_rows import VaeRow, limit_of
from vae_trace import traced

import tightfit
from tightfit.adapters import find_vae, load_vae
from tightfit.api.memory import open_memory
from tightfit.api.work import Chosen, Watching, Work
from tightfit.card import Card
from tightfit.errors import MemoryShortage
from tightfit.place import placed
from tightfit.place.link import measure_link
from tightfit.report.record import Report
from tightfit.run.framing import to_frames, to_source
from tightfit.run.intake import Given
from tightfit.run.job import Request
from tightfit.run.vae import Vae
from tightfit.units import format_bytes
from tightfit.weigh import weight_bytes

_WORDS = 300
_TIMED = "timed from host tensor to host tensor, the weights on the card"


@dataclass
class Bench:
    """The rows of one job.

    Attributes:
        job: what is measured.
        card: free.
        whos: which rows are asked for.
        calls: that are timed, of each.
        deadline: of `time.monotonic`; no peer starts after it, nor the run in float32.
        trace: one more call of ours is looked at by a profiler.
    """

    job: Job
    card: Card
    whos: Sequence[str] = EVERY
    calls: int = CALLS
    deadline: float = math.inf
    trace: bool = True
    results: dict[str, torch.Tensor] = field(default_factory=dict)

    def rows(self) -> Iterator[VaeRow]:
        """As they come; a row that comes again has more in it."""
        job = self.job
        self.vae: Vae = load_vae(find_vae(f"random:{job.network}"), dtype=job.dtype)
        self.source = job.source(self.vae.traits)
        values = self.source
        if job.direction == "encode":
            values, _ = to_source(self.source, self.vae.traits)
        self.values = values.to(job.dtype)
        self.rate = measure_link(self.card.device, free=self.card.read().free).pinned
        self.whole_seconds: float | None = None
        rows = []
        with placed(self.vae.module, self.card.device):
            for who in (who for who in EVERY if who in self.whos):
                row = self._row(who)
                if who == WHOLE:
                    self.whole_seconds = row.seconds
                rows.append(replace(row, whole_seconds=self.whole_seconds))
                yield rows[-1]
        yield from self._beside_float32(rows)

    def _row(self, who: str) -> VaeRow:
        """One way, in a thread of its own: libraries keep per thread what they chose before."""
        row = VaeRow(
            self.job.name,
            who,
            budget_bytes=self.job.budget if who == OURS else None,
            weights_bytes=weight_bytes(self.vae.module),
            link_rate=self.rate,
        )
        if who not in (WHOLE, OURS) and time.monotonic() > self.deadline:
            return replace(row, completed=False, note="no time was left")
        try:
            row = in_a_thread(partial(self._ways()[who], row))
        except Exception as error:
            row = replace(row, completed=False, **self._peaks()).said(_told(error))
        self.vae.reset()
        gc.collect()
        self.card.trim()
        return row

    def _ways(self) -> dict[str, Callable[[VaeRow], VaeRow]]:
        peers = {
            who: partial(self._tiled, size=None if who == TILED else self.job.tile)
            for who in EVERY
            if who not in (WHOLE, OURS)
        }
        return {WHOLE: self._whole, OURS: self._ours, **peers}

    def _whole(self, row: VaeRow) -> VaeRow:
        """On the free card; what the errors of the others are taken from."""
        call = partial(self._plain(), self.values)
        try:
            seen = timed(self.card, call, calls=self.calls)
        except Exception as error:
            words = f"does not fit: {_told(error)}"
            return replace(row, completed=False, rung=None, **self._peaks()).said(words)
        self.results[WHOLE] = seen.value
        again = same_bits(seen.value, seen.first_value)
        return self._seen(replace(row, rung="whole"), seen).said(
            "the free card, random weights",
            "" if again else "OTHER BITS WHEN RUN AGAIN",
            "" if bool(torch.isfinite(seen.value).all()) else "NOT FINITE",
        )

    def _tiled(self, row: VaeRow, *, size: int | None) -> VaeRow:
        """What diffusers does itself."""
        with tiled(self.vae.module, size) as words:
            call = partial(self._plain(), self.values)
            seen = timed(self.card, call, calls=self.calls, patient=False)
        row = self._seen(replace(row, rung=words), seen)
        ours = self.results.get(OURS)
        if WHOLE not in self.results and ours is not None:
            row = row.said(f"relative rms from tightfit's {rms(seen.value, ours):.3g}")
        return row

    def _ours(self, row: VaeRow) -> VaeRow:
        """The library under its budget: its own call first, then the job within it is timed."""
        reports: list[Report] = []
        try:
            seen = timed(
                self.card,
                lambda: self._work(reports),
                first=partial(self._library_call, reports),
                calls=self.calls,
            )
        except MemoryShortage as shortage:
            return _refused(row, shortage)
        report = reports[-1]
        self.results[OURS] = seen.value
        shown = seen.first_value
        row = self._seen(row, seen)
        row = replace(
            row,
            rung=report.attempts[-1]["rung"],
            exact=all(each.exact is not False for each in reports),
            attempts=tuple(_try(each) for each in report.attempts),
            peak_allocated_bytes=_most(each.peak_bytes for each in reports),
            peak_reserved_bytes=_most(each.peak_reserved_bytes for each in reports),
            baseline_bytes=report.baseline_bytes,
            host_told_bytes=_most(_host_bytes(each) for each in reports),
        )
        refused = sum(each["refusals"] or 0 for each in report.attempts)
        row = row.said(
            f"{row.rung}, {'exact' if row.exact else 'NOT EXACT'}",
            f"a first call through the library {seen.first:.2f} s, planning and frames included",
            "" if self._agrees(shown, seen.value) else "THE LIBRARY'S CALL GAVE SOMETHING ELSE",
            "" if row.host_told_bytes is None else f"of it {_host_lines(report)}",
            f"{refused} requests refused" if refused else "",
            *(
                f"{each['rung']} did not hold: {each['reason']}"[:_WORDS]
                for each in report.attempts
                if each["outcome"] == "oom"
            ),
            *report.adjusted,
            *report.warnings,
        )
        if self.trace and len(seen.seconds) > 1:
            row = self._traced(row)
        limit = limit_of(self.whole_seconds, row.up_bytes, row.down_bytes, self.rate)
        return replace(row, limit_seconds=limit)

    def _traced(self, row: VaeRow) -> VaeRow:
        try:
            seen = traced(self.card, lambda: self._work([]))
        except Exception as error:
            return row.said(f"no trace: {_told(error)}")
        return row.broken_down(seen)

    def _library_call(self, reports: list[Report]) -> torch.Tensor:
        """As a user calls it: the latent, or frames; its report is added to `reports`."""
        how: dict[str, Any] = {"vae": self.vae, "card": self.card, "vram": self.job.budget}
        if self.job.direction == "encode":
            encoded = tightfit.encode(self.source, **how)
            reports.append(encoded.report)
            return encoded.value.latent
        decoded = tightfit.decode(self.values, **how)
        reports.append(decoded.report)
        return decoded.value.pixels

    def _work(self, reports: list[Report]) -> torch.Tensor:
        """What such a call does between two host tensors; its report is added to `reports`."""
        memory = open_memory(card=self.card, vram=self.job.budget)
        request = Request(memory.budget, memory.reserve, memory.wish, memory.estimate)
        work = Work(
            Chosen.of(self.vae),
            self.job.direction,
            memory,
            request,
            Watching(),
            {},
            time.perf_counter(),
        )
        outcome, _ = work.run(Given(self.values), None)
        reports.append(work.report(outcome, {}))
        return outcome.value

    def _agrees(self, shown: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether what the library gave is what was timed."""
        if self.job.direction == "decode":
            value = to_frames(value, self.vae.traits)
        return torch.equal(shown, value)

    def _plain(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return plain(self.vae.module, self.job.direction, self.card.device)

    def _peaks(self) -> dict[str, Any]:
        peaks = self.card.read()
        return {
            "peak_allocated_bytes": peaks.peak_allocated,
            "peak_reserved_bytes": peaks.peak_reserved,
        }

    def _seen(self, row: VaeRow, seen: Timed) -> VaeRow:
        """What was measured of any way, and how far it is from the whole run."""
        whole = self.results.get(WHOLE)
        equal = None if whole is None else same_bits(seen.value, whole)
        error = 0.0 if equal else None if whole is None else rms(seen.value, whole)
        once = seen.seconds == (seen.first,)
        row = replace(
            row,
            seconds=median(seen.seconds),
            all_seconds=seen.seconds,
            first_seconds=seen.first,
            peak_allocated_bytes=seen.allocated,
            peak_reserved_bytes=seen.reserved,
            host_peak_bytes=seen.host,
            input_bytes=self.values.nbytes,
            bit_equal=equal,
            rms_error=error,
        )
        return row.said(
            f"host_peak_bytes {seen.host} ({format_bytes(seen.host)}, the result included)",
            f"{_TIMED}{', one call, its first' if once else ''}",
        )

    def _beside_float32(self, rows: Sequence[VaeRow]) -> Iterator[VaeRow]:
        """Rows with how far they are from a whole run in float32, where that can be had."""
        results = {row.who: self.results.get(row.who) for row in rows}
        if WHOLE not in self.results or self.job.dtype is torch.float32:
            return
        if time.monotonic() > self.deadline:
            wanted, words = None, "no time was left for a run in float32"
        else:
            wanted, words = in_a_thread(self._float32)
        for row in rows:
            result = results[row.who]
            if row.who not in (WHOLE, OURS) or result is None:
                continue
            if wanted is None:
                yield row.said(words)
                continue
            error = rms(result, wanted)
            told = f"relative rms {error:.3e} from the whole in float32"
            yield replace(row, fp32_rms_error=error).said(told)

    def _float32(self) -> tuple[torch.Tensor | None, str]:
        """The same weights and input, run whole in float32, without TF32; or why not."""
        nn.Module.to(self.vae.module, torch.float32)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
                stack.enter_context(placed(self.vae.module, self.card.device))
                return self._plain()(self.values.float()), ""
        except Exception as error:
            return None, f"no run in float32: {_told(error)}"


def _refused(row: VaeRow, shortage: MemoryShortage) -> VaeRow:
    """What the library says of a job that it could not do."""
    report = shortage.report
    row = replace(row, completed=False).said(f"{shortage.what} {shortage.figures}"[:_WORDS])
    if not isinstance(report, Report):
        return row
    return replace(
        row,
        attempts=tuple(_try(each) for each in report.attempts),
        peak_allocated_bytes=report.peak_bytes,
        peak_reserved_bytes=report.peak_reserved_bytes,
        baseline_bytes=report.baseline_bytes,
    )


def _try(attempt: Any) -> Try:
    return Try(
        attempt["rung"],
        attempt["outcome"],
        None if attempt["tile"] is None else tuple(attempt["tile"]),
        attempt["held_before_bytes"],
        attempt["baseline_bytes"],
        attempt["peak_bytes"],
        attempt["refusals"],
    )


def _host_bytes(report: Report) -> int | None:
    """Of the ledger's lines about the host, all together; None where there is none."""
    found = [line["bytes"] for name, line in report.ledger.items() if name.startswith("host")]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


def _host_lines(report: Report) -> str:
    return ", ".join(
        f"{name} {line['bytes']}" for name, line in report.ledger.items() if name.startswith("host")
    )


def _most(figures: Any) -> int | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _told(error: Exception) -> str:
    """The first line of an error; the error itself holds frames, and they hold tensors."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0][:_WORDS] if lines else ''}"
