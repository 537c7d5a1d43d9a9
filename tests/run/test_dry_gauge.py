"""The gauge that runs a network on the meta device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from tightfit.errors import InputError
from tightfit.plan.size import Size
from tightfit.run.dry_gauge import DryGauge, sizes_for_lines
from tightfit.run.planning.gauge import TableGauge, Working
from tightfit.run.planning.steps import Steps
from tightfit.testing import toy_vae
from tightfit.weigh.calibration import Calibration, Seen
from tightfit.weigh.dry import dry_run
from tightfit.weigh.table import needs_of
from tightfit.weigh.workspace import CUDA

PICTURES, CLIPS = Steps(8, None), Steps(8, 4)
JOB = Size(256, 128)


@dataclass
class Toy:
    """Encodes with a toy VAE on the meta device, and remembers at which sizes it ran."""

    name: str = "V2"
    ran: list[Size] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The network has shapes and no values."""
        self.vae = toy_vae(self.name)
        self.vae.module.to("meta")

    def __call__(self, size: Size) -> Callable[[], object]:
        """A call at `size`."""
        axes = (size.frames, size.height, size.width)[-self.vae.traits.axes :]
        shape = (size.batch, 3, *axes)

        def run() -> object:
            self.ran.append(size)
            try:
                return self.vae.encode(torch.empty(shape, device="meta"))
            finally:
                self.vae.reset()

        return run


def dry(working: Working) -> int:
    """Known, or the test fails."""
    assert working.dry is not None
    return working.dry


def test_the_size_of_the_job_is_told_by_a_run_at_that_size() -> None:
    """Tensors, the operator at the peak, and operations; one run, however often it is asked."""
    toy = Toy()
    gauge = DryGauge(toy, JOB)
    seen = dry_run(Toy()(JOB))
    for allocator in ("exact", "native", "exact"):
        told = gauge.at(JOB, allocator=allocator)
        assert (told.dry, told.at, told.flops) == (seen.peak, seen.at, float(seen.flops))
        assert told.source == "predicted"
    assert toy.ran == [JOB]


def test_an_allocator_that_fragments_is_replayed() -> None:
    """The least limit holds what is allocated, and what is reserved holds that."""
    gauge = DryGauge(Toy(), JOB)
    exact = gauge.at(JOB, allocator="exact")
    assert (exact.least, exact.reserved) == (None, None)
    for allocator in ("native", "async", "expandable"):
        told = gauge.at(JOB, allocator=allocator)
        assert told.least is not None
        assert told.reserved is not None
        assert dry(told) <= (told.allocated or 0) <= told.least <= told.reserved


def test_scratch_counts_where_operators_take_it() -> None:
    """A convolution takes twice its input."""
    bare, cuda = (
        DryGauge(Toy(), JOB, workspaces=spaces).at(JOB, allocator="exact")
        for spaces in (DryGauge(Toy(), JOB).workspaces, CUDA)
    )
    assert bare.allocated == bare.dry == cuda.dry
    assert (cuda.allocated or 0) > dry(cuda)


def test_real_runs_correct_what_is_allocated() -> None:
    """Not the tensors, which are counted; a run that took less does not make them fewer."""
    plain = dry(DryGauge(Toy(), JOB).at(JOB, allocator="exact"))
    for factor in (1.5, 0.6):
        seen = Seen(JOB.samples, plain, int(plain * factor))
        told = DryGauge(Toy(), JOB, calibration=Calibration((seen,))).at(JOB, allocator="exact")
        assert told.dry == plain
        assert told.allocated == pytest.approx(max(plain, plain * factor), rel=0.001)


def test_other_sizes_are_told_by_lines_that_agree_at_the_size_of_the_job() -> None:
    """Given ones are scaled; nothing but the job itself is run."""
    needs = needs_of("flux-vae", "decode", "bfloat16")
    assert needs is not None
    lines = TableGauge(needs)
    toy = Toy()
    gauge = DryGauge(toy, JOB, lines)
    here, there = (gauge.at(size, allocator="native") for size in (JOB, Size(512, 256)))
    told = [lines.at(size, allocator="native") for size in (JOB, Size(512, 256))]
    assert dry(there) / dry(here) == pytest.approx(dry(told[1]) / dry(told[0]))
    assert toy.ran == [JOB]


@pytest.mark.parametrize(
    ("name", "steps", "job", "other"),
    [
        ("V2", PICTURES, Size(512, 256), Size(1024, 1024)),
        ("V2N", PICTURES, Size(512, 256), Size(768, 512, batch=3)),
        ("V3", CLIPS, Size(128, 128, 9), Size(192, 128, 33)),
    ],
)
def test_without_lines_a_few_small_runs_draw_them(
    name: str, steps: Steps, job: Size, other: Size
) -> None:
    """They come near what a run would tell, and nothing large is run."""
    toy = Toy(name)
    sizes = sizes_for_lines(steps, job)
    gauge = DryGauge(toy, job, sizes=sizes)
    told = gauge.at(other, allocator="native")
    true = DryGauge(Toy(name), other).at(other, allocator="native")
    assert dry(told) == pytest.approx(dry(true), rel=0.1)
    assert told.flops == pytest.approx(true.flops, rel=0.1)
    assert set(toy.ran) == {job, *sizes}
    assert len(toy.ran) == len(set(toy.ran))


GRID = [
    Size(w, h, f, b)
    for w, h, f, b in itertools.product((64, 128, 320), (64, 192), (1, 5, 9), (1, 2))
]


def below(one: Size, two: Size) -> bool:
    """Whether `one` is no larger in any way."""
    return (
        one.width <= two.width
        and one.height <= two.height
        and one.frames <= two.frames
        and one.batch <= two.batch
    )


def figures(working: Working) -> tuple[int, int, int]:
    """Tensors, allocated, and what holds that."""
    return dry(working), working.allocated or 0, working.least or 0


@pytest.mark.parametrize("name", ["V2", "V2N", "V2P", "V3"])
@pytest.mark.parametrize("lines", [True, False])
def test_a_larger_job_never_needs_less(name: str, *, lines: bool) -> None:
    """Told by lines, and run by run."""
    steps = CLIPS if name == "V3" else PICTURES
    grid = GRID if name == "V3" else [size for size in GRID if size.frames == 1]
    job = Size(128, 128, 5 if name == "V3" else 1)
    sizes = sizes_for_lines(steps, job) if lines else ()
    gauge = DryGauge(Toy(name), job, sizes=sizes)
    # Within 1/64 is all that the search for the least limit promises.
    allocator = "native" if lines else "exact"
    told = {size: figures(gauge.at(size, allocator=allocator)) for size in (*grid, job)}
    for one, two in itertools.permutations(told, 2):
        if below(one, two):
            assert all(a <= b for a, b in zip(told[one], told[two], strict=True)), (one, two)


def test_a_network_that_cannot_be_run_dry_says_why_and_nothing_is_predicted() -> None:
    """Once, and in one line; code that depends on values is such a network."""
    ran = []

    def depends(size: Size) -> Callable[[], object]:
        ran.append(size)
        return lambda: torch.zeros(3, device="meta").sum().item()

    gauge = DryGauge(depends, JOB, sizes=(Size(8, 8),))
    for size in (JOB, Size(64, 64), JOB):
        assert gauge.at(size, allocator="native") == Working()
    assert ran == [JOB]
    assert gauge.problem
    assert "\n" not in gauge.problem


def test_our_own_reasons_need_no_name_of_a_class() -> None:
    """What others raised is named."""

    def refuses(size: Size) -> Callable[[], object]:
        raise InputError(f"How it is called at {size} is not known here.")

    gauge = DryGauge(refuses, JOB)
    gauge.at(JOB, allocator="exact")
    assert gauge.problem == "How it is called at 256x128 is not known here"

    def breaks(size: Size) -> Callable[[], object]:
        del size
        raise KeyError

    other = DryGauge(breaks, JOB)
    other.at(JOB, allocator="exact")
    assert other.problem == "KeyError"


def test_sizes_for_lines_are_small_and_are_taken() -> None:
    """Clips where there are frames, and none beyond what a network can tell apart."""
    for steps, job in ((PICTURES, JOB), (Steps(32, 8), Size(512, 512, 81)), (CLIPS, JOB)):
        sizes = sizes_for_lines(steps, job)
        assert all(steps.cast(size) == size for size in sizes)
        assert len(set(sizes)) == len(sizes) >= 3
        assert (max(size.frames for size in sizes) > 1) == (job.frames > 1)
    assert max(size.width for size in sizes_for_lines(Steps(16, None, 256), JOB)) == 256
