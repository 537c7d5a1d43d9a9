"""What a job needs: the weights in units that move as one, and the working memory of each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tightfit.plan.figure import NOTHING, UNKNOWN, Figure


@dataclass(frozen=True)
class Unit:
    """Weights that move as one: a block, or a module that owns tensors.

    Attributes:
        name: unique within its model.
        bytes: as stored; ties once.
        converted: bytes of the biggest copy in the compute dtype that is alive at once while the
            unit runs (dequantised, upcast, unpacked); 0 if it computes in what is stored, or if
            its parts say.
        largest: bytes of the largest module in it that owns tensors; None is the unit itself, or
            the largest of its parts.
        share: of the compute time of one call, in any scale; None is by bytes.
        parts: the modules in it that own tensors, in order, where they are known; their bytes add
            up to the unit's, and they have no parts themselves.
        stays: why it cannot be streamed; None is that it can.
        unpacked: bytes that it is unpacked to, whole, for each use; 0 where it is not packed.
        kept: it is to stay, though it could be streamed.
    """

    name: str
    bytes: int
    converted: int = 0
    largest: int | None = None
    share: float | None = None
    parts: tuple[Unit, ...] = ()
    stays: str | None = None
    unpacked: int = 0
    kept: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be a unit."""
        if self.bytes < 0 or self.converted < 0 or (self.share is not None and self.share < 0):
            raise ValueError(f"unit `{self.name}` has a size or share below 0")
        if self.largest is not None and not 0 <= self.largest <= self.bytes:
            raise ValueError(f"the largest part of unit `{self.name}` is not within it")
        if self.parts and sum(part.bytes for part in self.parts) != self.bytes:
            raise ValueError(f"the parts of unit `{self.name}` do not add up to {self.bytes} bytes")
        if any(part.parts for part in self.parts):
            raise ValueError(f"a part of unit `{self.name}` has parts")

    @property
    def leaf(self) -> int:
        """Bytes of the largest piece, if the unit is taken apart."""
        if self.parts:
            return max(part.leaf for part in self.parts)
        return self.bytes if self.largest is None else self.largest

    @property
    def scratch(self) -> int:
        """Bytes of the biggest converted copy in it."""
        return max((part.converted for part in self.parts), default=0) or self.converted

    @property
    def pinned(self) -> bool:
        """Whether something in it is not streamed, whatever there is room for."""
        return any(each.stays is not None or each.kept for each in (self, *self.parts))


@dataclass(frozen=True)
class Way:
    """One way to do a stage: whole, in strips, in tiles of some size.

    Attributes:
        name: as reports call it.
        activations: peak of live tensors beyond weights and input.
        workspace: what libraries take inside operators.
        slack: reserved less allocated at the peak.
        exact: differs from whole by rounding alone.
        host: what it keeps in host memory meanwhile.
        cut: of a way that takes as much as there is: the way for so many bytes, or what it takes at
            least where it does not fit in them; None where there is no such way after all. It may
            take long, and is asked only where nothing before it in the ladder fits.
    """

    name: str
    activations: Figure
    workspace: Figure = NOTHING
    slack: Figure = NOTHING
    exact: bool = True
    host: Figure = NOTHING
    cut: Callable[[int], Way | None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Demand:
    """What one stage needs.

    Attributes:
        stage: ``encode text``, ``denoise``, ``decode`` …, unique within the job.
        units: of its weights, in the order they run in.
        activations, workspace, slack: of the only way to do it; see `Way`.
        ways: in the order of the ladder, where there are several; the three above are then unused.
        inputs: bytes of the input, on the card from the start.
        scratch: other fixed buffers, such as what LoRA needs.
        calls: of the whole set of weights in this stage (the steps of a denoiser).
        flops: of one call; None is unknown.
        seconds: measured compute time of one call with everything resident; counts before `flops`.
        what: completes "Not enough memory to …"; None is the stage's name.
        model: stages of one model share its weights; None is a model of its own.
        mapped: the masters lie in a file in the form that is copied, and can stay there.
        piece: see `tightfit.plan.streaming.residency.Limits`; None is as it is there.
        slices: weights that are too large for a slot may pass in slices of rows.
    """

    stage: str
    units: tuple[Unit, ...]
    activations: Figure = UNKNOWN
    workspace: Figure = NOTHING
    slack: Figure = NOTHING
    ways: tuple[Way, ...] = ()
    inputs: int = 0
    scratch: Figure = field(default=NOTHING)
    calls: int = 1
    flops: float | None = None
    seconds: float | None = None
    what: str | None = None
    model: str | None = None
    mapped: bool = False
    piece: float | None = None
    slices: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be a stage."""
        names = [unit.name for unit in self.units]
        if len(set(names)) != len(names):
            raise ValueError(f"stage `{self.stage}` has two units of one name")
        if self.calls < 1 or self.inputs < 0:
            raise ValueError(f"stage `{self.stage}` has fewer than 1 calls, or inputs below 0")

    @property
    def ladder(self) -> tuple[Way, ...]:
        """The ways in order; one called ``whole`` where none are given."""
        return self.ways or (Way("whole", self.activations, self.workspace, self.slack),)

    @property
    def weights(self) -> int:
        """Bytes of all units."""
        return sum(unit.bytes for unit in self.units)

    @property
    def owner(self) -> str:
        """The model whose weights these are."""
        return self.model or self.stage

    @property
    def sentence(self) -> str:
        """What is said when there is no room for it."""
        return f"Not enough memory to {self.what or self.stage}."
