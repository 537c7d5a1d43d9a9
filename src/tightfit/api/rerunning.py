"""A job that memory ended, done again on a virtual card: would it have fitted there?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.api.coding import decode, encode
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage, UsageError
from tightfit.plan.budget import BudgetWish
from tightfit.report.record import Report
from tightfit.report.replaying import play
from tightfit.report.trace_file import Trace

_OURS = ("random:", "mini:")
_FILES = ("--image", "--mask", "--lora", "--transformer", "--vae", "--text-encoder", "--base")
"""Options of `generate` that name files, which a log does not have."""
_STEPS = 2
"""Of denoising: all take the same memory, and the first one places the weights."""


@dataclass(frozen=True)
class Rerun:
    """What came of it; sizes in bytes.

    Attributes:
        way: ``job`` (it was done again, with values drawn anew), or ``recorded`` (its allocations
            were played through the model of the card's allocator).
        card: on which.
        budget: what could be used there.
        fits: whether it did.
        peak_bytes, peak_reserved_bytes: the most that was held, or would be without a bound.
        rung: what the job held with; None for what was recorded, and where nothing held.
        moves: that were replayed.
        exact: of what was recorded: single allocations, rather than looks at their sum.
        error: the sentence of a job that did not fit.
    """

    way: str
    card: str
    budget: int
    fits: bool
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    rung: str | None = None
    moves: int = 0
    exact: bool = True
    error: str | None = None


def rerun(
    trace: Trace, *, card: str, vram: str | int | None = None, recorded: bool = False
) -> Rerun:
    """Do the job of an out-of-memory log, or of a trace, again on a virtual card.

    A job of a ``random:`` or ``mini:`` model can be done from its log alone: with an input of the
    same size and the same options. Of any other, what was recorded is replayed.

    Args:
        trace: of `read_trace`.
        card: ``virtual:SIZE`` or ``virtual:NAME``.
        vram: the budget there; by default all of it.
        recorded: replay what was recorded in any case.

    Raises `UsageError` for a card that is not virtual, and `InputError` where nothing is recorded.
    """
    opened = open_card(card)
    if not isinstance(opened, VirtualCard):
        raise UsageError(f"rerun needs a virtual card, such as virtual:8GiB; {card} is a real one.")
    amount = BudgetWish.of(vram, None).on(opened.name, opened.read().total)
    report = _report(trace)
    job = None if recorded else _job(report, _command(trace))
    if job is None:
        free = opened.read().free
        room = amount.budget if free is None else min(amount.budget, free)
        played = play(trace, allocator=opened.allocator, room=room, grain=opened.grain)
        return Rerun(
            "recorded",
            opened.name,
            room,
            played.fits,
            played.allocated,
            played.reserved if played.fits else played.needed,
            moves=played.moves,
            exact=played.exact,
        )
    options = {**job.options, "card": opened, "vram": vram}
    try:
        done = job.run(options)
    except MemoryShortage as error:
        held = error.report if isinstance(error.report, Report) else None
        return Rerun(
            "job",
            opened.name,
            amount.budget,
            fits=False,
            peak_bytes=None if held is None else held.peak_bytes,
            peak_reserved_bytes=None if held is None else held.peak_reserved_bytes,
            error=str(error),
        )
    rungs = [each["rung"] for each in done.attempts if each["outcome"] == "ok"]
    return Rerun(
        "job",
        opened.name,
        amount.budget,
        fits=True,
        peak_bytes=done.peak_bytes,
        peak_reserved_bytes=done.peak_reserved_bytes,
        rung=rungs[-1] if rungs else None,
    )


@dataclass(frozen=True)
class _Job:
    """A job that can be done again.

    Attributes:
        kind: ``encode``, ``decode`` or ``generate``.
        spec: of its model.
        about: the report's `input`.
        command: its arguments.
        options: of the memory, as the library takes them.
    """

    kind: str
    spec: str
    about: Mapping[str, Any]
    command: Sequence[str]
    options: Mapping[str, Any]

    def run(self, options: Mapping[str, Any]) -> Report:
        """Its report. Raises `MemoryShortage`."""
        if self.kind == "encode":
            return encode(self._pixels(), vae=self.spec, **options).report
        if self.kind == "decode":
            latent = torch.randn(self.about["shape"], generator=_seeded())
            return decode(latent, vae=self.spec, **options).report
        from tightfit.api.generation.generating import generate

        asked: dict[str, Any] = {
            name: int(value)
            for name in ("width", "height", "frames", "num")
            if (value := _option(self.command, f"--{name}")) is not None
        }
        steps = min(_STEPS, int(_option(self.command, "--steps") or _STEPS))
        return generate(
            self.spec, prompt="a", out=None, seed=0, steps=steps, **asked, **options
        ).report

    def _pixels(self) -> torch.Tensor:
        """A picture or a clip of the same size, between 0 and 1."""
        size = (3, self.about["height"], self.about["width"])
        if self.about.get("kind") == "picture":
            return torch.rand(size, generator=_seeded())
        return torch.rand((self.about.get("frames") or 1, *size), generator=_seeded())


def _job(report: Mapping[str, Any], command: Sequence[str]) -> _Job | None:
    """None where a log does not have all that the job needs."""
    kind, about = report.get("command"), report.get("input") or {}
    spec = (report.get("model") or {}).get("spec")
    needs = {"encode": ("width", "height"), "decode": ("shape",), "generate": ()}
    if kind not in needs or not isinstance(spec, str) or not spec.startswith(_OURS):
        return None
    if any(about.get(name) is None for name in needs[kind]):
        return None
    if kind == "generate" and any(_option(command, name) is not None for name in _FILES):
        return None
    return _Job(kind, spec, about, command, _memory_options(kind, command))


def _memory_options(kind: str, command: Sequence[str]) -> dict[str, Any]:
    named = {"--reserve-vram": "reserve", "--vram-mode": "mode", "--dtype": "dtype"}
    if kind != "generate":
        named |= {"--tile": "tile", "--overlap": "overlap"}
    found: dict[str, Any] = {
        name: value
        for option, name in named.items()
        if (value := _option(command, option)) is not None
    }
    if "--no-estimate" in command:
        found["estimate"] = False
    if "--pad" in command and kind == "encode":
        found["pad"] = _option(command, "--pad")
    return found


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of an option of a command line, the last one of several."""
    found = None
    for at, argument in enumerate(command):
        if argument == name and at + 1 < len(command):
            found = command[at + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found


def _report(trace: Trace) -> Mapping[str, Any]:
    known = trace.header.get("report")
    if isinstance(known, Mapping):
        return known
    for event in reversed(trace.events):
        if event["event"] == "report" and isinstance(event.get("report"), Mapping):
            found: Mapping[str, Any] = event["report"]
            return found
    return {}


def _command(trace: Trace) -> Sequence[str]:
    return [str(each) for each in trace.header.get("command") or ()]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
