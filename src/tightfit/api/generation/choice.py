"""Which pipeline a job is for, and what can be told of it before it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.live.legal import Legal, live_parts
from tightfit.adapters.live.orders import Order, Speech
from tightfit.adapters.live.pipeline import is_pipeline
from tightfit.adapters.loading.schedulers import check_steps
from tightfit.adapters.loading.whole import (
    PipelineSource,
    find_pipeline,
    scheduler_of,
    stored_dtype,
)
from tightfit.adapters.parts import DECODE, DENOISE, Part
from tightfit.api.generation.saved_latents import vae_spec
from tightfit.api.memory import Memory, choose_dtype, open_memory
from tightfit.api.planning.planning import make_plan
from tightfit.api.sharing.pipelines import FittedPipeline, fitted_pipeline
from tightfit.api.work import dtype_name
from tightfit.card.host_memory import read_host_memory
from tightfit.errors import InputError, MemoryShortage, UsageError
from tightfit.place.streaming.host_budget import host_room
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import MODES
from tightfit.units import format_bytes
from tightfit.weigh.files.hash_lists import known_hash
from tightfit.weigh.files.headers import read_header

WEIGHTS = ("bf16", "fp8")


@dataclass(frozen=True)
class Choice:
    """The pipeline that was asked for: one that somebody has, or still a source.

    Attributes:
        spec: as the user wrote it; what a loaded one says of itself.
        class_name: of diffusers.
        networks: as far as they are known before they are loaded.
        legal: the sizes it takes; None where nobody knows.
        source: what is to be loaded.
        live: what was loaded by somebody else.
        files: networks that come from files of their own.
    """

    spec: str
    class_name: str
    networks: tuple[Part, ...]
    legal: Legal | None
    source: PipelineSource | None = None
    live: Any = None
    files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: Any,
        parts: Mapping[str, str | Path] | None,
        base: str | None,
        weights: str | None,
    ) -> Choice:
        """No weight is read."""
        check_weights(weights)
        if isinstance(pipeline, (str, Path)):
            files = {name: Path(path) for name, path in (parts or {}).items()}
            source = find_pipeline(str(pipeline), parts=files, base=base)
            legal = Legal.of(source.parts)
            return cls(str(pipeline), source.class_name, source.parts, legal, source, files=files)
        if not is_pipeline(pipeline):
            raise UsageError(
                f"generate takes a SPEC or a pipeline of diffusers, not a "
                f"{type(pipeline).__name__}."
            )
        if parts or base or weights:
            raise UsageError("parts, base and weights are of a SPEC: this pipeline is loaded.")
        networks = live_parts(pipeline.components)
        name = type(pipeline).__name__
        return cls(origin_of(pipeline), name, networks, Legal.of(networks), live=pipeline)

    @property
    def fitted(self) -> FittedPipeline | None:
        """What is done with it already."""
        try:
            return None if self.live is None else fitted_pipeline(self.live)
        except UsageError:
            return None

    def check_steps(self, steps: int | None, scheduler: str | None) -> None:
        """Raise `UsageError` for fewer than its scheduler, or one set up as that, can make."""
        found = None if self.source is None else scheduler_of(self.source)
        own = getattr(self.live, "scheduler", None)
        if own is not None:
            found = type(own).__name__, own.config
        if found is not None:
            check_steps(steps, *found, instead=scheduler)

    def sized(self, order: Order, speech: Speech) -> Order:
        """With the sizes that nobody gave: of the picture to start from, or the usual ones."""
        width, height, frames = order.width, order.height, order.frames
        if order.image is not None and width is None and height is None:
            width, height = order.image.size
        elif self.source is not None and self.source.known is not None:
            usual = self.source.size
            width, height = width or usual.width, height or usual.height
            if speech.makes_clips:
                frames = frames or usual.frames
        return replace(order, width=width, height=height, frames=frames)

    def memory(self, *, mode: str, dtype: torch.dtype | None, **options: Any) -> Memory:
        """The card and the budget, those of a pipeline that is fitted already where it is."""
        if mode not in MODES:
            raise UsageError(f"--vram-mode `{mode}` is unknown: use {', '.join(MODES)}.")
        there = self.fitted
        if there is not None:
            given = [name for name, value in options.items() if value is not None]
            if given:
                raise UsageError(f"{', '.join(given)}: the pipeline is fitted already.")
            options = {
                "card": there.card,
                "vram": there.budget.budget,
                "reserve": there.budget.reserve,
            }
        memory = open_memory(**options)
        if dtype is not None and not memory.card.supports(dtype):
            raise UsageError(
                f"--dtype {dtype_name(dtype)}: {memory.card.name} does not compute in it."
            )
        return replace(memory, mode=mode)

    def computes_in(
        self, asked: torch.dtype | None, memory: Memory, weights: str | None
    ) -> tuple[torch.dtype | None, str | None]:
        """The dtype to load in, None as stored; and what to say where the card lacks that."""
        if asked is not None or self.source is None or weights is not None:
            return asked, None
        for part in self.networks:
            if part.stage == DENOISE:
                with suppress(InputError):  # a hub's files are not there yet
                    stored = stored_dtype(part)
                    chosen, note = choose_dtype(None, stored=stored, upcast=False, card=memory.card)
                    return (None, None) if chosen == stored else (chosen, note)
        return None, None

    def decoder(self, pipe: Any) -> tuple[str, str | None]:
        """The VAE's SPEC for `tightfit decode`, and the dtype it has to be told."""
        dtype = dtype_name(getattr(getattr(pipe, "vae", None), "dtype", torch.float32))
        source = self.source
        if source is not None and source.hub is not None:
            return source.hub, None
        random = source is not None and source.random
        told = dtype if random and dtype != "float32" else None
        return vae_spec(self.networks, self.spec), told

    def refuse_too_large(
        self, order: Order, memory: Memory, dtype: torch.dtype | None, *, one_of_several: bool
    ) -> None:
        """Raise `MemoryShortage` where a plan says that a text encoder or the denoiser cannot run.

        The denoiser alone, where the card is `one_of_several`. Its VAE has more ways than a plan
        knows of, and its latents are kept. Nothing is said where no plan can be made.
        """
        plan = self.plan(
            order,
            card=memory.card.name,
            vram=memory.budget,
            reserve=memory.reserve,
            mode=memory.mode,
            dtype=dtype,
            one_of_several=one_of_several,
        )
        if plan is None:
            return
        if not all(stage.fits for stage in plan.stages):
            raise plan.shortage()
        if all(part.random for part in self.networks):
            self._refuse_random({each.demand.owner: each.demand.weights for each in plan.stages})

    def plan(
        self,
        order: Order,
        *,
        card: str,
        vram: str | int | None,
        reserve: str | int | None,
        mode: str,
        dtype: torch.dtype | None,
        one_of_several: bool = False,
    ) -> Plan | None:
        """For its text encoders and denoiser on `card`, which need not be open.

        The denoiser alone, where the card is `one_of_several`. None where no plan can be made.
        """
        if self.source is None:
            return None
        small = (self.source.known or "").endswith("-mini")
        with suppress(UsageError):
            return make_plan(
                [
                    part.spec
                    for part in self.networks
                    if part.stage == DENOISE or not (one_of_several or part.stage == DECODE)
                ],
                width=order.width,
                height=order.height,
                frames=order.frames,
                card=card,
                vram=vram,
                reserve=reserve,
                mode=mode,
                dtype=dtype_name(dtype) if dtype else "float32" if small else "auto",
            )
        return None

    def _refuse_random(self, sizes: Mapping[str, int]) -> None:
        """Random weights are in no file, in which some could stay."""
        memory = read_host_memory()
        size, room = sum(sizes.values()), host_room(memory)
        if size > room:
            raise MemoryShortage(
                f"Not enough host memory for the random weights of {self.spec}.",
                figures=f"They take {format_bytes(size)}; {format_bytes(room)} of "
                f"{format_bytes(memory.total)} is free for them.",
                advice="a smaller pipeline, or a machine with more memory",
            )

    def about(self, fitted: FittedPipeline | None) -> dict[str, Any]:
        """The report's `model`."""
        return {
            "spec": self.spec,
            "name": self.class_name,
            "random": self.source.random if self.source is not None else False,
            "parts": {name: str(path) for name, path in self.files.items()},
            "files": _known_hashes(self.networks),
            "networks": {} if fitted is None else _networks(fitted),
        }


def check_weights(weights: str | None) -> None:
    """Refuse what weights cannot become. Raises `UsageError`."""
    if weights is not None and weights not in WEIGHTS:
        raise UsageError(f"--weights `{weights}` is unknown: use {' or '.join(WEIGHTS)}.")


def _known_hashes(parts: Iterable[Part]) -> dict[str, str]:
    """Of their files, as lists beside them or a hub's cache tell; none is hashed for it."""
    known: dict[str, str] = {}
    for path in (each.path for each in parts if each.path is not None):
        with suppress(InputError):
            for file in read_header(path).files:
                told = known_hash(file)
                known |= {} if told is None else {str(file): told}
    return known


def _networks(fitted: FittedPipeline) -> dict[str, Any]:
    """Each with what its calls took, in seconds."""
    return {
        name: {
            "class": type(fitted.pipe.components[name]).__name__,
            "calls": spent.calls,
            "seconds": round(spent.seconds, 3),
            "card": fitted.where[name],
        }
        for name, spent in fitted.times.items()
    }


def origin_of(pipe: Any) -> str:
    """What a loaded pipeline was loaded from, in the words of whoever did; else its class."""
    return str(getattr(pipe, "name_or_path", None) or type(pipe).__name__)
