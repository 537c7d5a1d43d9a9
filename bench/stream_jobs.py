"""What `stream.py` measures: networks at their true size, and small cards that they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tightfit.plan.size import Size
from tightfit.units import MIB, parse_bytes

OURS, PACKED = "tightfit", "tightfit-packed"
"""With weights streamed as they are, and with those packed where that is faster."""
MINE = (OURS, PACKED)
RESIDENT = "resident"
LEAF, BLOCK = "diffusers group leaf", "diffusers group block"
MMGP, ACCELERATE = "mmgp", "accelerate device_map"
PEERS = (LEAF, BLOCK, MMGP, ACCELERATE)
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp8": "bfloat16"}
"""What is computed in, for each way to store."""
EIGHT_BITS = "fp8"
_START = 14.0
"""Seconds that a process takes to import everything and to open the card."""


@dataclass(frozen=True)
class Model:
    """A network.

    Attributes:
        name: as its jobs begin.
        spec: names it.
        size: of what it makes.
        shown: that size in the names of jobs.
        dtype: one of `DTYPES`; `EIGHT_BITS` is of the weights of linear layers, with scales.
        weights: bytes, about; what its seconds are guessed from.
        step: seconds of a step with everything on the card, about.
        alone: it is so large that its weights are on the host once: the process that ran it
            resident streams it, and no peer does.
    """

    name: str
    spec: str
    size: Size
    shown: str
    dtype: str
    weights: int
    step: float
    alone: bool = False

    @property
    def network(self) -> str:
        """Of its weights, whatever they make: those of one name are drawn once."""
        return f"{self.name} {self.dtype}"

    @property
    def title(self) -> str:
        """As the names of its jobs begin."""
        return " ".join((self.name, self.shown, self.dtype))

    @property
    def build_seconds(self) -> float:
        """Expected: weights drawn on the card, the resident run, weights to the host."""
        return _START + self.run_seconds + 0.45e-9 * self.weights

    @property
    def run_seconds(self) -> float:
        """Expected of the resident run alone."""
        return 9 * self.step


@dataclass(frozen=True)
class PackedBar:
    """What packed streaming has to reach.

    Attributes:
        over: what it is held against: the resident time, the limit with unpacking, or, the other
            way round, the time that streaming takes raw.
        times: at most so many times that; of raw streaming, at least so many times faster.
    """

    over: Literal["resident", "limit", "raw"]
    times: float


@dataclass(frozen=True)
class Job:
    """A network on a card too small for it.

    Attributes:
        model: the network.
        card: what is free on the card, as it is written.
        bar: times the limit that a step may take.
        peers: that have to run beside.
        extras: further ones, where time is left.
        full: the room has to be used (`stream_rows.SHARE`).
        behind: the limit is the resident time: copies have to hide behind it.
        packed: what packed streaming has to reach; None is that it is not measured.
        raw: it is measured without packing, too.
    """

    model: Model
    card: str
    bar: float
    peers: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    full: bool = False
    behind: bool = False
    packed: PackedBar | None = None
    raw: bool = True

    @property
    def name(self) -> str:
        """Of its rows; no name begins with another."""
        return f"{self.model.title} {self.card}"

    @property
    def bytes(self) -> int:
        """What is free on the card."""
        return parse_bytes(self.card)

    def seconds(self, who: str) -> float:
        """Expected of one row, the start of its process included."""
        size, step = self.model.weights, self.model.step
        copied = size / 50e9
        if who in MINE:
            start = 0.0 if self.model.alone else _START
            setting_up = (0.6e-9 if who == OURS else 0.9e-9) * size
            return start + setting_up + 12 * max(step, copied)
        if who == ACCELERATE:
            return _START + 0.3e-9 * size + 8 * (step + size / 8e9)
        return _START + 0.8e-9 * size + 9 * 1.5 * (step + copied)


@dataclass(frozen=True)
class Run:
    """One row to come.

    Attributes:
        job: what is done.
        who: does it.
        extra: only where time is left.
    """

    job: Job
    who: str
    extra: bool = False

    @property
    def seconds(self) -> float:
        """Expected."""
        return self.job.seconds(self.who)

    @property
    def label(self) -> str:
        """It among other rows of one process."""
        return f"{self.who}: {self.job.name}"


def rows_of(what: Sequence[str]) -> list[tuple[str, str]]:
    """Who and job of each row but the resident one that a process writes.

    `what` is who it runs, then jobs; for ``resident``, labels of rows that it runs afterwards.
    """
    who, *names = what
    if who != RESIDENT:
        return [(who, name) for name in names]
    parts = [label.partition(": ") for label in names]
    return [(each, name) for each, _, name in parts]


def models_of(jobs: Sequence[Job]) -> list[Model]:
    """Each once."""
    return list(dict.fromkeys(job.model for job in jobs))


def building(jobs: Sequence[Job]) -> float:
    """Seconds that are expected of one network with all that its jobs make, on the free card."""
    first, *others = models_of(jobs)
    return first.build_seconds + sum(model.run_seconds for model in others)


def runs_of(jobs: tuple[Job, ...]) -> list[Run]:
    """All rows of one network: ours, then the peers that have to be, then the others."""
    return [
        *(Run(job, OURS) for job in jobs if job.raw),
        *(Run(job, PACKED) for job in jobs if job.packed),
        *(Run(job, who) for job in jobs for who in job.peers),
        *(Run(job, who, extra=True) for job in jobs for who in job.extras),
    ]


_SQUARE = Size(1024, 1024)
_FLUX = Model("flux.1-dev", "flux.1-dev/transformer", _SQUARE, "1024", "bf16", 22_700 * MIB, 0.17)
_FLUX2 = Model(
    "flux.2-dev", "flux.2-dev/transformer", _SQUARE, "1024", "bf16", 61_500 * MIB, 0.5, alone=True
)
_WAN = Model(
    "wan2.1-t2v-14b",
    "wan2.1-t2v-14b/transformer",
    Size(832, 480, frames=33),
    "33x480x832",
    "bf16",
    27_250 * MIB,
    1.0,
)
_SDXL = Model("sdxl", "sdxl/unet", _SQUARE, "1024", "bf16", 4_900 * MIB, 0.1)

FULL = (
    Job(_FLUX, "12GiB", 1.04, peers=PEERS, full=True, packed=PackedBar("resident", 1.10)),
    Job(_FLUX, "8GiB", 1.05, extras=(LEAF, BLOCK), packed=PackedBar("limit", 1.05)),
    Job(_FLUX, "6GiB", 1.05, extras=(LEAF, BLOCK), packed=PackedBar("limit", 1.05)),
    Job(_SDXL, "3GiB", 1.10, extras=(LEAF,)),
    Job(_WAN, "12GiB", 1.03, extras=(LEAF, BLOCK), behind=True),
    Job(_FLUX2, "24GiB", 1.05, packed=PackedBar("raw", 1.25)),
)
"""In the order in which they run: what takes most of the host comes last."""


def _eight_bits(name: str, side: int, card: str, weights: int, step: float) -> Job:
    """Already as few bytes as it has: there is nothing to pack, and one row of ours."""
    model = Model(
        name,
        f"{name}/transformer",
        Size(side, side),
        f"{side}",
        EIGHT_BITS,
        weights,
        step,
        alone=True,
    )
    return Job(model, card, 1.05, packed=PackedBar("limit", 1.05), raw=False)


EIGHT = (
    _eight_bits("flux.2-dev", 256, "16GiB", 30_750 * MIB, 0.15),
    _eight_bits("flux.2-dev", 1024, "16GiB", 30_750 * MIB, 0.6),
    _eight_bits("flux.2-dev", 2048, "16GiB", 30_750 * MIB, 2.5),
)
"""Stored in eight bits, the same weights for all sizes; `packed.py` has them."""


def _mini(name: str, part: str, size: Size, dtype: str = "fp32", *, alone: bool = False) -> Model:
    spec = f"{name}/{part}"
    return Model(name, spec, size, f"{size.width}", dtype, 20 * MIB, 0.5, alone=alone)


MINI = (
    Job(
        _mini("flux.1-dev-mini", "transformer", Size(64, 64), "bf16"),
        "6MiB",
        1.04,
        peers=(LEAF, MMGP),
        full=True,
        packed=PackedBar("limit", 1.05),
    ),
    Job(_mini("sdxl-mini", "unet", Size(128, 128)), "16MiB", 1.10),
    Job(
        _mini("flux.2-dev-mini", "transformer", Size(64, 64), "bf16", alone=True),
        "6.5MiB",
        1.05,
        packed=PackedBar("raw", 1.25),
    ),
)
"""The same steps where there is no GPU."""

EIGHT_MINI = (
    _eight_bits("flux.2-dev-mini", 64, "5MiB", 6 * MIB, 0.2),
    _eight_bits("flux.2-dev-mini", 128, "5MiB", 6 * MIB, 0.2),
)

EVERY = (*FULL, *EIGHT, *MINI, *EIGHT_MINI)
"""In the order in which rows stand in a file."""
