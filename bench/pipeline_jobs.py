"""What `pipeline.py` measures: whole pipelines at their true size, and cards too small for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tightfit.plan.size import Size
from tightfit.units import GIB, parse_bytes

RESIDENT, OURS = "resident", "tightfit"
MODEL, GROUP, MMGP = "model-offload", "group-offload", "mmgp"
WIDENED = "to-float32"
PEERS = (GROUP, MMGP, WIDENED, MODEL)
EVERY = (RESIDENT, OURS, *PEERS)
MARGINS = (GIB, 3 * GIB)
"""What a peer that is told a budget leaves free beside activations; more where it was short."""
_START = 20.0
"""Seconds that a process takes to import everything and to open the card."""


@dataclass(frozen=True)
class Model:
    """A pipeline and what is asked of it.

    Attributes:
        name: as its jobs begin.
        spec: of `tightfit.adapters.loading.whole`.
        size: of what it makes.
        shown: that size in the names of jobs.
        steps: of denoising.
        weights: of the denoiser: None as they are, or ``fp8``.
        bytes: of all weights, about; what its seconds are guessed from.
        step: seconds of a step with everything on the card, about.
        guided: it is called twice a step.
        part: of the pipeline, the one network that is measured, by itself; its weights are stored
            in bf16 or as `weights` says, and used in float32.
        alone: the host has no room for a second copy: each row draws its own, and no peer runs.
    """

    name: str
    spec: str
    size: Size
    shown: str
    steps: int
    bytes: float
    step: float
    weights: str | None = None
    guided: bool = False
    part: str | None = None
    alone: bool = False

    @property
    def title(self) -> str:
        """As the names of its jobs begin."""
        if self.part is not None:
            return f"{self.name} {self.shown}"
        return f"{self.name} {self.shown} {self.steps}steps"

    @property
    def build_seconds(self) -> float:
        """Expected, to draw the weights and to lay them where all rows find them."""
        quantised = 1.2e-9 * self.bytes if self.part is not None and self.weights else 0.0
        return _START + quantised + 1.2e-9 * self.bytes

    def seconds(self, who: str) -> float:
        """Expected of one row."""
        if who == WIDENED:  # which fills the card, and no more
            return _START + 0.2e-9 * self.bytes
        once = self.steps * (max(self.step, 0.0 if who == RESIDENT else self.bytes / 5e10) + 0.1)
        drawn = 1.2e-9 * self.bytes if self.alone else 0.0
        return _START + drawn + 0.7e-9 * self.bytes + 2.5 * once


@dataclass(frozen=True)
class Job:
    """A pipeline on a card too small for it.

    Attributes:
        model: the pipeline.
        card: what is free on the card, as it is written.
    """

    model: Model
    card: str

    @property
    def name(self) -> str:
        """Of its rows; no name begins with another."""
        return f"{self.model.title} {self.card}"

    @property
    def bytes(self) -> int:
        """What is free on the card."""
        return parse_bytes(self.card)

    @property
    def whos(self) -> tuple[str, ...]:
        """Who runs it."""
        if self.model.part is not None:
            return (RESIDENT, OURS, WIDENED, GROUP)
        if self.model.alone:
            return (RESIDENT, OURS)
        return (RESIDENT, OURS, MODEL, GROUP, MMGP)


_SQUARE = Size(1024, 1024)
_FLUX = Model("flux.1-dev", "flux.1-dev", _SQUARE, "1024", 20, 33.8e9, 0.18)
_FLUX2 = Model("flux.2-dev bf16", "flux.2-dev", _SQUARE, "1024", 20, 112.6e9, 0.5, alone=True)
_FLUX2_FP8 = Model(
    "flux.2-dev fp8", "flux.2-dev", _SQUARE, "1024", 20, 82e9, 0.5, weights="fp8", alone=True
)
_WAN = Model(
    "wan2.1-t2v-14b",
    "wan2.1-t2v-14b",
    Size(832, 480, frames=33),
    "33x480x832",
    20,
    40.4e9,
    1.6,
    guided=True,
)
_SDXL = Model("sdxl", "sdxl", _SQUARE, "1024", 30, 7e9, 0.06)
_QWEN = Model("qwen-image", "qwen-image", Size(1328, 1328), "1328", 20, 57.7e9, 0.5)
_WORDS = Model(
    "flux.2-dev text-encoder bf16",
    "flux.2-dev",
    _SQUARE,
    "fp32-compute",
    1,
    48e9,
    0.6,
    part="text_encoder",
)
_WORDS_FP8 = replace(_WORDS, name="flux.2-dev text-encoder fp8", bytes=26e9, weights="fp8")

FULL = (
    *(Job(_FLUX, card) for card in ("8GiB", "12GiB", "16GiB")),
    Job(_SDXL, "4GiB"),
    Job(_WAN, "12GiB"),
    Job(_QWEN, "12GiB"),
    *(Job(model, card) for model in (_FLUX2, _FLUX2_FP8) for card in ("24GiB", "16GiB")),
    *(Job(model, "24GiB") for model in (_WORDS, _WORDS_FP8)),
)

_SMALL = Size(128, 128)
MINI = (
    Job(Model("flux.1-dev-mini", "flux.1-dev-mini", _SMALL, "128", 4, 1e7, 0.1), "16MiB"),
    Job(
        Model(
            "wan2.1-t2v-1.3b-mini",
            "wan2.1-t2v-1.3b-mini",
            Size(64, 64, frames=5),
            "5x64x64",
            4,
            1e7,
            0.1,
            guided=True,
        ),
        "24MiB",
    ),
    *(
        Job(
            replace(
                model,
                name=model.name.replace("flux.2-dev", "flux.2-dev-mini"),
                spec="flux.2-dev-mini",
                size=_SMALL,
                bytes=1e7,
                step=0.1,
            ),
            "17MiB",
        )
        for model in (_WORDS, _WORDS_FP8)
    ),
)


def runs_of(jobs: Sequence[Job], who: Sequence[str]) -> list[tuple[Job, str]]:
    """Rows of jobs of one model; the resident one is the same for all of them, and runs once."""
    found = [(job, each) for each in EVERY for job in jobs if each in job.whos and each in who]
    first = jobs[0]
    return [(job, each) for job, each in found if each != RESIDENT or job is first]
