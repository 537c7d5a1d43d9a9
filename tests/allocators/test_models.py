"""The models of allocators: blocks, segments, grains, and books that add up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit import allocators as models
from tightfit.errors import BooksError
from tightfit.units import KIB, MIB

NAMES = ("exact", "native", "async", "expandable")
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 3 * MIB),
    st.integers(1, 45 * MIB),
    st.sampled_from([512, MIB - 1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB, 32 * MIB]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES),
        st.tuples(st.just("give"), st.integers(0, 10_000)),
        st.just(("trim", 0)),
    ),
    max_size=60,
)


class Memory:
    """A driver with a limit."""

    def __init__(self, limit: int = 2**62) -> None:
        self.limit = limit
        self.taken = 0

    def grow(self, size: int) -> bool:
        if self.taken + size > self.limit:
            return False
        self.taken += size
        return True

    def shrink(self, size: int) -> None:
        self.taken -= size


def make(name: str, memory: Memory) -> models.Allocator:
    makers: dict[str, Callable[..., models.Allocator]] = {
        "exact": models.ExactAllocator,
        "native": models.NativeAllocator,
        "async": models.malloc_async,
        "expandable": models.expandable,
    }
    return makers[name](memory.grow, memory.shrink)


def head_of(block: models.Block) -> models.Block:
    while block.before is not None:
        block = block.before
    return block


def assert_apart(name: str, blocks: list[models.Block]) -> None:
    if name == "exact":
        return
    spaces: dict[int, list[tuple[int, int]]] = {}
    for block in blocks:
        space = id(head_of(block)) if name == "native" else id(block.pool)
        spaces.setdefault(space, []).append((block.offset, block.offset + block.size))
    for spans in spaces.values():
        spans.sort()
        for (_, stop), (start, _) in pairwise(spans):
            assert stop <= start, f"two blocks in use share bytes from {start}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [2**62, 96 * MIB], ids=["unlimited", "96 MiB"])
@given(steps=STEPS)
def test_the_books_hold_whatever_is_taken_and_given(
    name: str, limit: int, steps: list[tuple[str, int]]
) -> None:
    """After each step: blocks apart, large enough, reserved >= allocated, driver agrees."""
    memory = Memory(limit)
    allocator = make(name, memory)
    held: list[models.Block] = []
    for step, value in steps:
        if step == "take":
            try:
                block = allocator.take(value)
            except models.Full:
                assert limit < 2**62
            else:
                assert block.size >= value
                held.append(block)
        elif step == "give" and held:
            allocator.give(held.pop(value % len(held)))
        elif step == "trim":
            before = allocator.reserved
            assert allocator.trim() == before - allocator.reserved
        allocator.check()
        assert_apart(name, held)
        assert allocator.allocated == sum(block.size for block in held)
        assert allocator.allocated <= allocator.reserved == memory.taken <= limit
    for block in held:
        allocator.give(block)
    allocator.check()
    assert allocator.allocated == 0
    allocator.trim()
    allocator.check()
    assert allocator.reserved == memory.taken == 0


@given(sizes=st.lists(SIZES, max_size=30))
def test_exact_reserves_what_it_allocates_in_steps_of_512(sizes: list[int]) -> None:
    """The plain virtual card has no slack."""
    allocator = make("exact", Memory())
    for size in sizes:
        allocator.take(size)
    assert allocator.reserved == sum(models.round_up(size, 512) for size in sizes)


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_native_takes_segments_of_the_published_sizes(size: int, segment: int) -> None:
    """2 MiB for requests up to 1 MiB, 20 MiB below 10 MiB, else steps of 2 MiB."""
    allocator = make("native", Memory())
    allocator.take(size)
    assert allocator.reserved == segment


def test_native_small_and_large_requests_never_share_a_segment() -> None:
    """A freed large block does not serve a small request."""
    allocator = make("native", Memory())
    allocator.give(allocator.take(8 * MIB))
    allocator.take(1024)
    assert allocator.reserved == 22 * MIB


def test_native_takes_the_smallest_block_that_fits() -> None:
    """Best fit: the larger hole stays for a larger request."""
    allocator = make("native", Memory())
    large, small = allocator.take(40 * MIB), allocator.take(30 * MIB)
    allocator.give(large)
    allocator.give(small)
    allocator.take(30 * MIB)
    allocator.take(40 * MIB)
    assert allocator.reserved == 70 * MIB


def test_native_keeps_a_large_remainder_of_up_to_one_mib_with_the_block() -> None:
    """What is left after a split must be worth keeping, and counts as allocated otherwise."""
    allocator = make("native", Memory())
    allocator.give(allocator.take(40 * MIB))
    assert allocator.take(39 * MIB).size == 40 * MIB


def test_native_joins_neighbours_that_are_free() -> None:
    """Three blocks of one segment, given back in any order, serve one request of their sum."""
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = make("native", Memory())
        blocks = [allocator.take(6 * MIB) for _ in range(3)]
        assert allocator.reserved == 20 * MIB
        for at in order:
            allocator.give(blocks[at])
        allocator.take(18 * MIB)
        assert allocator.reserved == 20 * MIB


def test_native_gives_its_cache_back_before_it_refuses() -> None:
    """A request that only fits once the cache is gone succeeds, and counts as a retry."""
    allocator = make("native", Memory(60 * MIB))
    allocator.give(allocator.take(40 * MIB))
    allocator.take(50 * MIB)
    assert allocator.retries == 1
    assert allocator.reserved == 50 * MIB


def test_a_segment_in_use_does_not_go_back() -> None:
    """One small live tensor holds its whole segment: the slack that surprises people."""
    allocator = make("native", Memory(40 * MIB))
    keeps, goes = allocator.take(2 * MIB), allocator.take(18 * MIB)
    allocator.give(goes)
    assert allocator.trim() == 0
    with pytest.raises(models.Full):
        allocator.take(21 * MIB)
    allocator.give(keeps)
    allocator.take(21 * MIB)


def test_async_steps_are_those_of_the_seed_trace() -> None:
    """320 MiB modules add 320; 40 MiB ones 64, 32, 32, 32; 10 MiB 32, then small ones nothing."""
    allocator = make("async", Memory())

    def added(size: int) -> int:
        before = allocator.reserved
        allocator.take(size)
        return (allocator.reserved - before) // MIB

    assert added(1280 * MIB) == 1280
    assert [added(320 * MIB) for _ in range(5)] == [320] * 5
    assert [added(40 * MIB) for _ in range(4)] == [64, 32, 32, 32]
    assert added(10 * MIB) == 32
    assert [added(10 * KIB) for _ in range(3)] == [0, 0, 0]


def test_async_gives_back_whole_grains_alone() -> None:
    """A hole gives back the grains that lie wholly inside it."""
    allocator = make("async", Memory())
    first, hole, last = allocator.take(8 * MIB), allocator.take(60 * MIB), allocator.take(8 * MIB)
    assert allocator.reserved == 96 * MIB
    allocator.give(hole)
    assert allocator.trim() == 32 * MIB  # bytes 8 to 68: only the grain from 32 to 64 is whole
    allocator.check()
    allocator.give(first)
    allocator.give(last)
    allocator.trim()
    assert allocator.reserved == 0


def test_native_takes_the_later_of_two_equal_segments() -> None:
    """PyTorch takes the lower address, and a driver's addresses fall."""
    allocator = make("native", Memory())
    earlier, later = allocator.take(30 * MIB), allocator.take(30 * MIB)
    allocator.give(later)
    allocator.give(earlier)
    assert allocator.take(30 * MIB).offset == later.offset


def test_async_takes_what_was_freed_last_of_those_within_a_power_of_two() -> None:
    """Not the smallest that fits, unless the others are twice as large."""
    allocator = make("async", Memory())
    first, small, last, large = (
        (allocator.take(size * MIB), allocator.take(32 * MIB))[0] for size in (96, 64, 96, 128)
    )
    for block in (small, last, first, large):
        allocator.give(block)
    taken = [allocator.take(64 * MIB).offset for _ in range(4)]
    assert taken == [
        first.offset + 32 * MIB,
        last.offset + 32 * MIB,
        small.offset,
        large.offset + 64 * MIB,
    ]
    allocator.check()


def test_async_cuts_a_block_from_its_high_end_when_it_was_in_use_before() -> None:
    """So a whole FLUX encode at 2048x2048 takes 1 GiB more than it needs: measured, 7,424 MiB."""
    allocator = make("async", Memory())
    allocator.take(1024 * MIB)
    allocator.give(allocator.take(2048 * MIB))
    allocator.take(1024 * MIB)  # the high half: what is free lies no longer at the end
    allocator.take(2048 * MIB)
    assert allocator.reserved == (1024 + 2048 + 2048) * MIB
    allocator.check()


def test_expandable_grows_small_and_large_ranges_by_their_own_pages() -> None:
    """2 MiB pages up to 1 MiB, 20 MiB pages above, each in a range of its own."""
    allocator = make("expandable", Memory())
    allocator.take(1024)
    assert allocator.reserved == 2 * MIB
    allocator.take(15 * MIB)
    assert allocator.reserved == 22 * MIB
    allocator.take(10 * MIB)  # 5 MiB are left at the end of the range
    assert allocator.reserved == 42 * MIB


def test_expandable_takes_a_larger_hole_before_the_end_of_the_range() -> None:
    """PyTorch counts the end as large as it can grow; a later request finds it whole."""
    allocator = make("expandable", Memory())
    hole = allocator.take(60 * MIB)
    allocator.take(24 * MIB)
    allocator.give(hole)
    assert allocator.take(12 * MIB).offset == hole.offset  # though 16 MiB are left at the end
    assert allocator.take(50 * MIB).offset == 84 * MIB  # 48 MiB are left of the hole
    assert allocator.reserved == 140 * MIB
    allocator.check()


def test_expandable_takes_the_end_of_the_range_where_nothing_else_fits() -> None:
    """In either range: what is mapped is used before more is."""
    allocator = make("expandable", Memory())
    hole = allocator.take(14 * MIB)
    allocator.take(40 * MIB)
    allocator.give(hole)
    assert allocator.take(6 * MIB).offset == hole.offset
    assert allocator.take(10 * MIB).offset == 60 * MIB - 6 * MIB
    assert allocator.reserved == 80 * MIB
    small = allocator.take(512)
    assert allocator.take(512).offset == small.offset + 512
    assert allocator.reserved == 82 * MIB


def test_a_grain_can_be_chosen() -> None:
    """The grain of the async model is an option of the card."""
    memory = Memory()
    models.malloc_async(memory.grow, memory.shrink, grain=2 * MIB).take(1)
    assert memory.taken == 2 * MIB


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_error_in_the_books_is_found(name: str) -> None:
    """`check` adds up the blocks and does not trust the totals."""
    for figure in ("allocated", "reserved"):
        allocator = make(name, Memory())
        allocator.take(5 * MIB)
        setattr(allocator, figure, getattr(allocator, figure) + 512)
        with pytest.raises(BooksError):
            allocator.check()


@pytest.mark.parametrize("name", ["native", "async", "expandable"])
def test_a_block_that_reaches_into_the_next_is_found(name: str) -> None:
    """Overlap is an error even where the sums agree."""
    allocator = make(name, Memory())
    first, _ = allocator.take(4 * MIB), allocator.take(4 * MIB)
    assert first.after is not None
    first.after.offset += 512
    with pytest.raises(BooksError):
        allocator.check()
