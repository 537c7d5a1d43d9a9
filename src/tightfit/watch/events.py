"""What can happen: one value for each kind of event, and the line of a trace that it becomes.

Sizes are bytes, times seconds, unknown is None. `t`, when it happened, is the recorder's to add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

State = Literal["resident", "streamed", "packed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: the word for it in a trace.
        is_fine: it belongs to the fine level, where there are very many of them.
    """

    kind: ClassVar[str]
    is_fine: ClassVar[bool] = False

    def as_line(self) -> dict[str, Any]:
        """JSON values: `event`, then its figures by name."""
        names = [each.name for each in fields(self)]
        return {"event": self.kind, **{name: _plain(getattr(self, name)) for name in names}}


@dataclass(frozen=True, slots=True)
class Memory(Event):
    """A look at the card."""

    kind: ClassVar[str] = "memory"
    allocated_bytes: int
    reserved_bytes: int | None


# A job, from stage to stage and rung to rung


@dataclass(frozen=True, slots=True)
class StageBegan(Event):
    """A job came to another stage, such as ``denoise``."""

    kind: ClassVar[str] = "stage"
    stage: str


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """A step of denoising is over."""

    kind: ClassVar[str] = "step"
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Attempt(Event):
    """A rung is tried; `held_bytes` are allocated before."""

    kind: ClassVar[str] = "attempt"
    stage: str
    rung: str
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class Done(Event):
    """A rung held."""

    kind: ClassVar[str] = "done"
    stage: str
    rung: str


@dataclass(frozen=True, slots=True)
class Oom(Event):
    """A rung ran out of memory; `text` is what the card said."""

    kind: ClassVar[str] = "oom"
    stage: str
    rung: str
    text: str


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """What a failed try held is free: `held_bytes` are left, and should be `baseline_bytes`."""

    kind: ClassVar[str] = "recovered"
    held_bytes: int | None
    baseline_bytes: int | None


@dataclass(frozen=True, slots=True)
class Skipped(Event):
    """A rung that was known not to fit."""

    kind: ClassVar[str] = "skipped"
    stage: str
    rung: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tile(Event):
    """A tile or a strip is done.

    Attributes:
        rung: whose.
        done, total: how many are, of how many.
        box: left, top, width and height in pixels of the picture; None where it has no place.
    """

    kind: ClassVar[str] = "tile"
    rung: str
    done: int
    total: int
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Baseline(Event):
    """Weights and input are there, and nothing else."""

    kind: ClassVar[str] = "baseline"
    bytes: int | None


@dataclass(frozen=True, slots=True)
class End(Event):
    """The job is over; what is still held."""

    kind: ClassVar[str] = "end"
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class Told(Event):
    """The report of the job, as it was handed over."""

    kind: ClassVar[str] = "report"
    report: Mapping[str, Any]


# Weights, and where they are


@dataclass(frozen=True, slots=True)
class Planned(Event):
    """A plan was made: what each line of the ledger takes, and which ways there are.

    Attributes:
        name: of a network, or of a stage.
        budget_bytes: what reserved may come to.
        ledger: bytes by line.
        rungs: ways, in the order they are tried in.
    """

    kind: ClassVar[str] = "plan"
    name: str
    budget_bytes: int | None
    ledger: Mapping[str, int | None]
    rungs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """A block has its place, and how the card looks then.

    Attributes:
        n: how many were placed before it.
        block: its name in its network.
        bytes: of its weights, as they are copied.
        state: stays, is copied for each use, or stays and is unpacked for each use.
        reserved_bytes, allocated_bytes: of the card, after it.
        network: whose block it is.
    """

    kind: ClassVar[str] = "placed"
    n: int
    block: str
    bytes: int
    state: State
    reserved_bytes: int | None
    allocated_bytes: int | None
    network: str = ""


@dataclass(frozen=True, slots=True)
class RingOpened(Event):
    """Slots that streamed blocks pass through were allocated, with scratch, if there is any."""

    kind: ClassVar[str] = "ring"
    bytes: int
    slots: int
    reserved_bytes: int | None
    allocated_bytes: int | None
    network: str = ""


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """The weights of a network were placed anew.

    Attributes:
        network: which.
        bytes: resident now; `before_bytes` were.
        why: in words.
        seconds: that it took.
    """

    kind: ClassVar[str] = "moved"
    network: str
    bytes: int
    before_bytes: int
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Evicted(Event):
    """A block that was resident left the card."""

    kind: ClassVar[str] = "evicted"
    network: str
    block: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Rests(Event):
    """A network left the card until it is called again; so many bytes came free."""

    kind: ClassVar[str] = "rests"
    network: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StreamedStep(Event):
    """One call of a streamed network: copies, waits, compute, as `StepTrace.as_dict` has them.

    Attributes:
        network: which.
        start: seconds of the trace at which the host began the call.
        figures: of the step; the times of its blocks are from the start of the step.
    """

    kind: ClassVar[str] = "streamed_step"
    network: str
    start: float | None
    figures: Mapping[str, Any]

    def as_line(self) -> dict[str, Any]:
        """The figures stand beside the name."""
        return {"event": self.kind, "network": self.network, "start": self.start, **self.figures}


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """Somebody waited."""

    kind: ClassVar[str] = "wait"
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Others(Event):
    """What other programs hold of the card."""

    kind: ClassVar[str] = "others"
    bytes: int


@dataclass(frozen=True, slots=True)
class LeakFound(Event):
    """What stayed, and who holds it, as the leak finder tells it."""

    kind: ClassVar[str] = "leak"
    leak: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> dict[str, Any]:
        """The figures of the leak stand for themselves."""
        return {"event": self.kind, **self.leak}


# The fine level: every single move of an allocator


@dataclass(frozen=True, slots=True)
class Allocate(Event):
    """Bytes were taken from the allocator.

    Attributes:
        bytes: as it counts them.
        address: where; None where it is not told.
        by: the code that asked, as ``module:line function``; None where it is not known.
    """

    kind: ClassVar[str] = "allocate"
    is_fine: ClassVar[bool] = True
    bytes: int
    address: int | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Free(Event):
    """Bytes were given back to the allocator."""

    kind: ClassVar[str] = "free"
    is_fine: ClassVar[bool] = True
    bytes: int
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Reserve(Event):
    """The allocator took bytes from the driver."""

    kind: ClassVar[str] = "reserve"
    is_fine: ClassVar[bool] = True
    bytes: int
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Release(Event):
    """The allocator gave bytes back to the driver."""

    kind: ClassVar[str] = "release"
    is_fine: ClassVar[bool] = True
    bytes: int
    address: int | None = None


@dataclass(frozen=True, slots=True)
class Unseen(Event):
    """What of the card's memory this trace cannot show, and what stands in for it."""

    kind: ClassVar[str] = "unseen"
    text: str


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
