"""Two sequences of moves laid side by side."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.units import MIB
from tightfit.weigh import alignment
from tightfit.weigh.alignment import align

_sizes = st.sampled_from([1, 2, 3, 4]).map(lambda n: n * 4096)
_moves = st.lists(st.tuples(_sizes, st.booleans()).map(lambda m: m[0] if m[1] else -m[0]))


def only_foreseen(foreseen: list[int], seen: list[int]) -> list[int]:
    return [foreseen[i] for i, j in align(foreseen, seen) if i is not None and j is None]


def only_seen(foreseen: list[int], seen: list[int]) -> list[int]:
    """Indices, so that it shows which of two equal moves is meant."""
    return [j for i, j in align(foreseen, seen) if i is None and j is not None]


@given(_moves, _moves)
def test_every_move_of_both_appears_once_and_in_order(foreseen: list[int], seen: list[int]) -> None:
    """Whatever the two are; and moves are paired only with their like."""
    pairs = align(foreseen, seen)
    assert [i for i, _ in pairs if i is not None] == list(range(len(foreseen)))
    assert [j for _, j in pairs if j is not None] == list(range(len(seen)))
    assert all(foreseen[i] == seen[j] for i, j in pairs if i is not None and j is not None)


@given(_moves)
def test_a_sequence_is_itself(moves: list[int]) -> None:
    """Nothing is left over on either side."""
    assert align(moves, moves) == [(at, at) for at in range(len(moves))]


def test_scratch_of_the_size_of_the_next_result_is_not_taken_for_it() -> None:
    """A workspace that comes and goes at once, between a result and the end of the input."""
    foreseen = [4096, 4096, -4096, 4096, -4096]
    seen = [4096, 4096, 4096, -4096, -4096, 4096, -4096]
    assert only_seen(foreseen, seen) == [2, 3]
    assert not only_foreseen(foreseen, seen)


def test_what_a_fused_operator_never_makes_is_left_out() -> None:
    """Everything after it still finds its own."""
    foreseen = [4096, 8192, 12288, -8192, 16384, -12288, -16384, 8192, -4096]
    seen = [4096, 8192, -4096]
    assert only_foreseen(foreseen, seen) == [8192, 12288, -8192, 16384, -12288, -16384]
    assert not only_seen(foreseen, seen)


@pytest.mark.parametrize("more", [512, MIB - 512])
def test_a_large_block_that_was_given_whole_is_still_the_one_that_was_asked_for(more: int) -> None:
    """The caching allocator does not split off less than a MiB."""
    assert align([3 * MIB, -3 * MIB], [3 * MIB + more, -3 * MIB - more]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("asked", "given"), [(3 * MIB, 4 * MIB), (3 * MIB, 3 * MIB - 512)])
def test_other_sizes_are_other_moves(asked: int, given: int) -> None:
    """A MiB more would have been split off, and less is not enough."""
    assert len(align([asked], [given])) == 2


def test_sequences_longer_than_the_band_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out, and what is put in, is spread over the whole run."""
    monkeypatch.setattr(alignment, "_BAND", 64)
    rounds = [[4096 * n, 8192, -8192, -4096 * n] for n in range(1, 200)]
    foreseen = [move for one in rounds for move in (*one[:2], 40960, -40960, *one[2:])]
    seen = [move for one in rounds for move in (one[0], 81920, -81920, *one[1:])]
    pairs = align(foreseen, seen)
    assert sum(None not in pair for pair in pairs) >= 4 * len(rounds)
    assert all(one != two for one, two in pairwise(pairs))
