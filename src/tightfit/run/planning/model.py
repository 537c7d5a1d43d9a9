"""A model that was weighed: one stage of one network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tightfit.errors import UsageError
from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.plan.size import Size
from tightfit.run.planning.gauge import Gauge
from tightfit.run.planning.steps import ANY, Steps
from tightfit.run.planning.strips import StripsGauge
from tightfit.weigh.blocks import Weights

ENCODERS = ("encode text", "encode image")
"""Stages that see no picture of the job."""


class Shaped(Protocol):
    """What sees a picture or clip of the job."""

    @property
    def name(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def steps(self) -> Steps: ...


@dataclass(frozen=True)
class Shape:
    """A stage of a network that is not weighed yet; see `Model`."""

    name: str
    stage: str
    steps: Steps


@dataclass(frozen=True)
class Model:
    """One stage of one network, weighed.

    Attributes:
        name: of the network: ``flux.1-dev/transformer``; stages of one name share its weights.
        stage: ``encode text``, ``denoise``, ``decode`` or ``encode``.
        weights: in blocks.
        gauge: what it needs beside them.
        calls: of the network in this stage.
        tiles: whether the stage can be done in tiles.
        mapped: the file holds the weights in the form that is copied.
        staying: blocks that cannot be streamed, with the reason.
        dtype: what it computes in, by the names of torch.
        steps: the sizes that it takes.
        strips: tells how it is run in strips; None is not known, or that it is not.
    """

    name: str
    stage: str
    weights: Weights
    gauge: Gauge
    calls: int = 1
    tiles: bool = False
    mapped: bool = False
    staying: tuple[tuple[str, str], ...] = ()
    dtype: str = "bfloat16"
    steps: Steps = ANY
    strips: StripsGauge | None = None

    def whole(self, size: Size) -> Size:
        """What the largest call of this stage is about, in a job of `size`."""
        return whole_call(self.stage, self.steps, size)


def whole_call(stage: str, steps: Steps, size: Size) -> Size:
    """What the largest call of `stage` is about, in a job of `size`.

    Encoders see no picture of the job; an autoencoder of pictures takes each frame as one.
    """
    if stage in ENCODERS:
        return Size(1, 1, batch=size.batch)
    if stage not in ("encode", "decode"):
        return size
    frames = 1 if steps.frames is None else size.frames
    return replace(size, frames=frames, batch=min(items_of(steps, size), MOST_AT_ONCE))


def cast_size(models: Sequence[Shaped], size: Size) -> Size:
    """The nearest size that all of `models` take; what changes is padded, never cut.

    Raises `UsageError` for a clip where pictures are made, and for sides beyond what a network
    can tell apart.
    """
    for model in models:
        if model.stage == "denoise" and model.steps.makes_clips is False and size.frames > 1:
            raise UsageError(f"{model.name} makes pictures, not {size.frames} frames at once.")
        size = model.steps.cast(size)
    for model in models:
        model.steps.check(size, model.name)
    return size


def items_of(steps: Steps, size: Size) -> int:
    """Pictures, or clips, that an autoencoder is given."""
    return size.batch * (size.frames if steps.frames is None else 1)
