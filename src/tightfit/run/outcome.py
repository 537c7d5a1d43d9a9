"""What came of one encode or decode, and the figures that are said about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tightfit.card import Reading
from tightfit.run.estimate import Estimate
from tightfit.run.ladder import PROBE, Attempt
from tightfit.units import format_bytes
from tightfit.weigh.calibration import Seen


@dataclass(frozen=True)
class Outcome:
    """What came of a job; sizes in bytes, None where the card keeps no books.

    Attributes:
        value: the result on the host; empty where it went to a delivery.
        attempts: the rungs, in order; the last one held.
        exact: the result differs from a whole run by rounding alone.
        estimate: what was predicted for the whole.
        ledger: line of DESIGN §4 → (bytes, ``measured`` or ``predicted``).
        notes: what the report should warn about.
        adjusted: what was changed of what was asked.
    """

    value: torch.Tensor
    attempts: tuple[Attempt, ...]
    exact: bool
    estimate: Estimate
    ledger: dict[str, tuple[int | None, str]]
    before_bytes: int | None
    baseline_bytes: int | None
    peak_bytes: int | None
    peak_reserved_bytes: int | None
    after_bytes: int | None
    notes: tuple[str, ...]
    adjusted: tuple[str, ...]

    @property
    def attempt(self) -> Attempt:
        """The one that held."""
        return self.attempts[-1]


def corrected(attempts: Iterable[Attempt], probed: Seen | None) -> list[str]:
    """What is said when a probe showed that the prediction was wrong."""
    probe = next((attempt for attempt in attempts if attempt.stage == PROBE), None)
    if probe is None or probed is None:
        return []
    return [
        f"a try that was predicted to fit did not: {probe.rung} took "
        f"{format_bytes(probed.measured)} where {format_bytes(probed.predicted)} were "
        "predicted, and the rest was planned from that"
    ]


def ledger(
    before: Reading,
    baseline: Reading,
    ran: Reading,
    last: Attempt,
    *,
    weights: int,
    coming: int,
    reserve: int,
    kind: str,
    on_host: int | None = 0,
) -> dict[str, tuple[int | None, str]]:
    """The lines of DESIGN §4 that a job of one VAE has, in bytes.

    Args:
        before: the card at first, then with weights and input, then after the last attempt.
        weights: of the VAE; `coming` are those of them that were not on the card at first.
        reserve: what was kept free.
        kind: of the card.
        on_host: what was kept in the host's memory meanwhile.
    """
    base, peak = baseline.allocated, last.peak_bytes
    if base is None or before.allocated is None:
        return {"weights_resident": (weights, "predicted")}
    held = last.baseline_bytes if last.baseline_bytes is not None else base
    peak_slack = None
    if peak is not None and last.peak_reserved_bytes is not None:
        peak_slack = last.peak_reserved_bytes - peak
    return {
        "weights_resident": (weights, "measured"),
        "ring": (0, "measured"),
        "scratch": (0, "measured"),
        "input": (max(0, base - before.allocated - coming), "measured"),
        "activations": (None if peak is None else peak - held, "measured"),
        "slack": (peak_slack, "measured"),
        "library_workspaces": (None if kind == "cuda" else 0, "measured"),
        "host_activations": (on_host, "measured"),
        "context": (ran.context, "measured"),
        "held_by_others": (ran.held_by_others, "measured"),
        "reserve": (reserve, "measured"),
    }
