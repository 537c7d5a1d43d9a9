"""One job of the library: the VAE that was asked for, the run, and the report on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from tightfit.adapters import (
    Source,
    adapt,
    fetch_vae,
    find_vae,
    known_hashes,
    load_vae,
    outline_vae,
    stored_dtype,
)
from tightfit.api.memory import Memory, choose_dtype
from tightfit.errors import MemoryShortage, UsageError
from tightfit.report.record import Report
from tightfit.run.cancel import Cancel
from tightfit.run.delivery import Delivery
from tightfit.run.estimate import Estimate
from tightfit.run.intake import Intake
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Attempt, Lessons
from tightfit.run.outcome import Outcome
from tightfit.run.preflight import preflight
from tightfit.run.rungs import EVICT, Progress
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.settings import Settings
from tightfit.watch import Recorder
from tightfit.watch.events import Told
from tightfit.watch.leaks import Scope, look, what_stayed
from tightfit.weigh.calibration import Calibrations


@dataclass
class Watching:
    """Who looks on while a job runs.

    Attributes:
        recorder: keeps the events.
        progress: told after every tile.
        cancel: stops the job before its next tile.
    """

    recorder: Recorder = field(default_factory=Recorder)
    progress: Progress | None = None
    cancel: Cancel = field(default_factory=Cancel)


@dataclass(frozen=True)
class Chosen:
    """The VAE that was asked for: ready, or still a source.

    Attributes:
        traits: what its shapes mean.
        source: of one that is not loaded.
        ready: one that is.
        kept: by dtype, what was loaded of `source`, and its outline, where several jobs share
            them; None where each job loads its own.
    """

    traits: Traits
    source: Source | None = None
    ready: Vae | None = None
    kept: dict[tuple[str, torch.dtype], Vae | None] | None = None

    @classmethod
    def of(cls, vae: str | nn.Module | Vae | Chosen) -> Chosen:
        """Find out what a SPEC is, or wrap what was given; no weights are read."""
        if isinstance(vae, Chosen):
            return vae
        if isinstance(vae, str):
            source = find_vae(vae)
            return cls(source.traits, source=source)
        ready = vae if isinstance(vae, Vae) else adapt(vae)
        return cls(ready.traits, ready=ready)

    def shared(self) -> Chosen:
        """The same, for several jobs: it is loaded once."""
        return replace(self, kept={})

    def outline(self, source: Source, dtype: torch.dtype) -> Vae | None:
        """Of `source`, which is that of this VAE, fetched."""
        return self._once(("outline", dtype), lambda: outline_vae(source, dtype=dtype))

    def load(self, source: Source, dtype: torch.dtype) -> Vae:
        """The same, with weights."""
        loaded = self._once(("loaded", dtype), lambda: load_vae(source, dtype=dtype))
        assert loaded is not None
        return loaded

    def _once(self, key: tuple[str, torch.dtype], make: Callable[[], Vae | None]) -> Vae | None:
        if self.kept is None:
            return make()
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def about(self, loaded: Vae | None) -> dict[str, Any]:
        """The report's `model`."""
        return {
            "spec": self.source.spec if self.source is not None else None,
            "name": self.traits.name,
            "hash": loaded.identity if loaded is not None else None,
            "dtype": dtype_name(loaded.dtype) if loaded is not None else None,
            "random": loaded.random
            if loaded is not None
            else bool(self.source and self.source.random),
            "ratio": [self.traits.temporal, self.traits.spatial],
            "latent_channels": self.traits.latent_channels,
            "files": {} if self.source is None else known_hashes(self.source),
        }


@dataclass
class Work:
    """One job with everything that its report needs.

    `before_report` is called once, before the report is made, by who knows the rest only then.
    """

    chosen: Chosen
    direction: Direction
    memory: Memory
    request: Request
    watching: Watching
    about: dict[str, Any]
    started: float
    adjusted: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    loaded: Vae | None = None
    delivery: Delivery | None = None
    before_report: Callable[[], None] = lambda: None

    def run(self, values: Intake, asked: torch.dtype | None) -> tuple[Outcome, Vae]:
        """Load the VAE and run; an error for want of memory carries the report."""
        before = self.memory.card.read().allocated
        lessons, calibrations = self._learnt()
        try:
            vae = self._load(values, asked, calibrations)
            self.loaded = vae
            job = Job(
                vae,
                self.direction,
                self.memory.card,
                self.request,
                self.watching.cancel,
                self.watching.recorder,
                lessons,
                self.watching.progress,
                calibrations,
                self.delivery,
            )
            with self._leaks_told():
                return job.run(values.to(vae.dtype)), vae
        except MemoryShortage as error:
            error.report = report = self._failed(error, before)
            error.recorder = self.watching.recorder
            self.watching.recorder.tell(Told(report.as_dict()))
            raise

    @contextmanager
    def _leaks_told(self) -> Iterator[None]:
        """Where every move is traced, what a job leaves on the card is told with who holds it."""
        recorder, card = self.watching.recorder, self.memory.card
        if not recorder.fine or card.kind == "cpu":
            yield
            return
        before = look(Scope((card,)))
        yield
        what_stayed(before).tell(recorder)

    def _learnt(self) -> tuple[Lessons, Calibrations]:
        """What earlier jobs taught. Each virtual card is a new one, maybe with faults of its own:
        what happens there is for this job alone."""
        if self.memory.card.kind == "virtual":
            return Lessons(), Calibrations()
        folder = Settings.from_environ().cache_dir
        return Lessons(folder / "lessons.json"), Calibrations(folder / "calibrations.json")

    def _load(self, values: Intake, asked: torch.dtype | None, calibrations: Calibrations) -> Vae:
        ready, source = self.chosen.ready, self.chosen.source
        if ready is not None:
            if asked not in (None, ready.dtype):
                raise UsageError(
                    f"dtype {dtype_name(asked)} is asked for, but the VAE that was given is "
                    f"{dtype_name(ready.dtype)}: cast it first."
                )
            if not self.memory.card.supports(ready.dtype):
                raise UsageError(
                    f"the VAE that was given is {dtype_name(ready.dtype)}, in which "
                    f"{self.memory.card.name} does not compute: cast it to float32 first."
                )
            return ready
        assert source is not None
        source = fetch_vae(source)
        dtype, note = choose_dtype(
            asked,
            stored=stored_dtype(source),
            upcast=source.upcast,
            card=self.memory.card,
        )
        if note is not None:
            self.adjusted.append(note)
        outline = self.chosen.outline(source, dtype)
        if outline is not None:
            preflight(
                outline,
                self.direction,
                self.memory.card,
                self.request,
                values.shape,
                calibrations=calibrations,
            )
        return self.chosen.load(source, dtype)

    def _same_bits(self, outcome: Outcome) -> bool:
        """Whether the result is that of a whole run, bit for bit.

        Not where a workspace was refused, or may have been: then other kernels may have run.
        """
        whole = outcome.attempt.rung in ("whole", EVICT)
        counted = outcome.attempt.refusals == 0 or self.memory.card.kind == "cpu"
        return whole and counted

    def report(self, outcome: Outcome, output: dict[str, Any]) -> Report:
        """For a job that was done."""
        self.before_report()
        warnings = [*self.warnings, *outcome.notes]
        if not outcome.exact:
            bound = outcome.attempt.error_bound
            within = (
                "how close is not known"
                if bound is None
                else f"within {bound:.2g} of it (relative rms), measured on small pieces"
            )
            warnings.append(
                f"{outcome.attempt.rung}: close to a whole run, but not the same; {within}"
            )
        report = Report(
            **self._common(),
            estimate=asdict(outcome.estimate),
            ledger={
                line: {"bytes": size, "source": source}
                for line, (size, source) in outcome.ledger.items()
            },
            attempts=[_attempt(attempt) for attempt in outcome.attempts],
            before_bytes=outcome.before_bytes,
            baseline_bytes=outcome.baseline_bytes,
            peak_bytes=outcome.peak_bytes,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            after_bytes=outcome.after_bytes,
            exact=outcome.exact,
            error_bound=0.0 if self._same_bits(outcome) else outcome.attempt.error_bound,
            adjusted=[*self.adjusted, *outcome.adjusted],
            warnings=warnings,
            output=output,
        )
        self.watching.recorder.tell(Told(report.as_dict()))
        return report

    def _failed(self, error: MemoryShortage, before: int | None) -> Report:
        """For a job that was refused, or of which no rung held; `before` was allocated then."""
        self.before_report()
        tries = [each for each in error.attempts if isinstance(each, Attempt)]
        coded = [each.baseline_bytes for each in tries if each.stage == self.direction]
        return Report(
            **self._common(),
            estimate=asdict(Estimate(None, None, None, "unknown: the job was not done")),
            attempts=[_attempt(each) for each in tries],
            before_bytes=before,
            baseline_bytes=coded[0] if coded else None,
            peak_bytes=_highest(each.peak_bytes for each in tries),
            peak_reserved_bytes=_highest(each.peak_reserved_bytes for each in tries),
            after_bytes=self.memory.card.read().allocated,
            adjusted=self.adjusted,
            warnings=[*self.warnings, *getattr(error, "__notes__", ())],
            error=str(error),
        )

    def _common(self) -> dict[str, Any]:
        card = self.memory.card
        return {
            "command": self.direction,
            "input": self.about,
            "model": self.chosen.about(self.loaded),
            "card": {
                "name": card.name,
                "kind": card.kind,
                "allocator": card.allocator,
                "total_bytes": card.read().total,
                "vram_mode": self.memory.mode,
            },
            "budget_bytes": self.memory.budget,
            "seconds": round(time.perf_counter() - self.started, 3),
        }


def dtype_name(dtype: torch.dtype | None) -> str:
    """``float32`` rather than ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _highest(sizes: Iterable[int | None]) -> int | None:
    """Of those that are known."""
    return max((size for size in sizes if size is not None), default=None)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    values = asdict(attempt)
    values["tile"] = None if attempt.tile is None else list(attempt.tile)
    return values
