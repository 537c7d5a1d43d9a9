"""The shipped table of what known architectures need beside their weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.units import GIB, MIB
from tightfit.weigh.files.recognise import FAMILIES
from tightfit.weigh.lines import Line, at_most
from tightfit.weigh.table import Needs, known_names, needs_of, usual_of

STAGES = ("encode text", "encode image", "denoise", "decode", "encode")
ROWS = [
    (name, stage) for name in known_names() for stage in STAGES if needs_of(name, stage, "bfloat16")
]
ALLOCATORS = ("native", "async", "expandable")


def needs(name: str, stage: str, dtype: str = "bfloat16") -> Needs:
    """A row that is there."""
    found = needs_of(name, stage, dtype)
    assert found is not None
    return found


def test_every_architecture_that_headers_tell_is_in_the_table() -> None:
    """Else a file of it would be planned without its activations."""
    known = {known.name for family in FAMILIES for known in family.members.values()}
    assert known <= set(known_names())
    assert {name for name, _ in ROWS} == set(known_names())


@pytest.mark.parametrize(("name", "stage"), ROWS)
def test_a_row_has_all_its_lines_in_order(name: str, stage: str) -> None:
    """None falls with the size, and what is allocated holds the tensors, within what lines tell."""
    row = needs(name, stage)
    assert set(row.reserved) == set(row.least) == set(ALLOCATORS)
    every = [row.dry, row.allocated, *row.reserved.values(), *row.least.values()]
    for line in (line for lines in every for line in lines):
        assert min(line.fixed, line.area, line.samples) >= 0
        assert line.frames >= 1
    assert all(factor >= 0 for factor in row.flops)
    for area, frames in ((512**2, 1), (1024**2, 1), (832 * 480, 81)):
        dry = at_most(row.dry, area=area, frames=frames)
        assert dry > 0
        assert row.allocated_at(area=area, frames=frames) >= 0.98 * dry
        assert row.flops_at(area=area, frames=frames) > 0


@pytest.mark.parametrize(
    ("name", "stage", "area", "frames", "gib"),
    [
        ("sdxl/unet", "denoise", 1024**2, 1, 0.31),
        ("flux.1-dev/transformer", "denoise", 1024**2, 1, 0.46),
        ("flux.1-dev/transformer", "denoise", 2048**2, 1, 1.67),
        ("flux.2-dev/transformer", "denoise", 1024**2, 1, 1.14),
        ("wan2.1-t2v-1.3b/transformer", "denoise", 832 * 480, 81, 1.51),
        ("wan2.1-t2v-14b/transformer", "denoise", 832 * 480, 81, 3.49),
        ("flux-vae", "decode", 1024**2, 1, 1.50),
        ("flux-vae", "decode", 2048**2, 1, 6.00),
        ("wan2.1-vae", "decode", 832 * 480, 81, 3.95),
    ],
)
def test_the_table_tells_what_others_counted(
    name: str, stage: str, area: int, frames: int, gib: float
) -> None:
    """Tensors alone, attention as the fused kernel; figures of another dry run, to 3 %."""
    told = at_most(needs(name, stage).dry, area=area, frames=frames)
    assert told / GIB == pytest.approx(gib, rel=0.03)


def test_half_precisions_need_the_same_and_float32_twice_that() -> None:
    """Where float32 has no row of its own, it is told from that of bfloat16."""
    asked = {"area": 1024**2, "frames": 1, "batch": 2}
    half, other, full = (
        needs("flux.1-dev/transformer", "denoise", dtype)
        for dtype in ("bfloat16", "float16", "float32")
    )
    assert half == other
    assert full.allocated_at(**asked) == pytest.approx(2 * half.allocated_at(**asked))
    assert full.flops == half.flops
    vae = needs("flux-vae", "decode", "float32").allocated_at(area=1024**2)
    assert vae == pytest.approx(
        2 * needs("flux-vae", "decode").allocated_at(area=1024**2), rel=0.02
    )


@pytest.mark.parametrize(
    ("name", "stage", "dtype"),
    [
        ("no-such/transformer", "denoise", "bfloat16"),
        ("flux-vae", "denoise", "bfloat16"),
        ("flux-vae", "decode", "int8"),
    ],
)
def test_what_is_not_in_the_table_is_unknown(name: str, stage: str, dtype: str) -> None:
    """None, never a neighbour's row."""
    assert needs_of(name, stage, dtype) is None
    assert usual_of("no-such") is None


def test_usual_sizes_are_those_that_people_ask_for() -> None:
    """Pictures at 1024x1024, Wan at 81 frames of 832x480."""
    assert usual_of("flux.1-dev/transformer") == (1024, 1024, 1)
    assert usual_of("sd1.5/unet") == (512, 512, 1)
    assert usual_of("wan2.1-t2v-14b/transformer") == (832, 480, 81)
    assert all(usual_of(name) is not None for name in known_names())


@given(
    st.sampled_from(ROWS),
    st.integers(8, 8192),
    st.integers(8, 8192),
    st.integers(1, 257),
    st.integers(1, 16),
    st.tuples(*(st.integers(0, 64) for _ in range(4))),
)
def test_a_larger_job_never_needs_less(
    row: tuple[str, str],
    width: int,
    height: int,
    frames: int,
    batch: int,
    more: tuple[int, int, int, int],
) -> None:
    """In any line of any row, whichever way it grows."""
    small = {"area": width * height, "frames": frames, "batch": batch}
    large = {
        "area": (width + more[0]) * (height + more[1]),
        "frames": frames + more[2],
        "batch": batch + more[3],
    }
    told = needs(*row)
    for lines in (told.dry, told.allocated, *told.reserved.values(), *told.least.values()):
        assert at_most(lines, **small) <= at_most(lines, **large)
    assert told.flops_at(**small) <= told.flops_at(**large)


@given(st.integers(1, 2**24), st.integers(1, 200), st.integers(1, 64))
def test_every_item_of_a_batch_needs_as_much(area: int, frames: int, batch: int) -> None:
    """Its text too: what does not grow with the picture is not there once for all of them."""
    line = Line(58 * MIB, 412.5, 3.0)
    one = line.at(area=area, frames=frames)
    assert batch * (one - 1) <= line.at(area=area, frames=frames, batch=batch) <= batch * one
