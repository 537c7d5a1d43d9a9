"""Which rows an operator needs."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tightfit.plan.strips.reach import SAME, Reach, share

SMALL = st.integers(1, 5)


@given(SMALL, SMALL, st.integers(0, 6), SMALL, st.integers(1, 40), st.data())
def test_a_window_needs_the_rows_that_it_touches_and_no_others(
    size: int, step: int, edge: int, apart: int, rows: int, data: st.DataObject
) -> None:
    """A convolution: from the first row that some window touches to the last."""
    spread = (size - 1) * apart
    made = (rows + 2 * edge - spread - 1) // step + 1
    assume(made > 0)
    begin = data.draw(st.integers(0, made - 1))
    end = data.draw(st.integers(begin + 1, made))
    touched = [
        row
        for out in range(begin, end)
        for tap in range(size)
        if 0 <= (row := out * step - edge + tap * apart) < rows
    ]
    low, high = Reach(step, 1, edge, spread + 1 - step - edge).needs(begin, end, rows)
    assert 0 <= low < high <= rows
    if touched:
        assert set(touched) <= set(range(low, high))
        if apart == 1 and step <= size:
            assert (low, high) == (min(touched), max(touched) + 1)


@given(st.integers(1, 30), SMALL, st.data())
def test_repeated_rows_need_the_one_that_they_repeat(
    rows: int, times: int, data: st.DataObject
) -> None:
    """Upsampling: exactly those."""
    begin = data.draw(st.integers(0, rows * times - 1))
    end = data.draw(st.integers(begin + 1, rows * times))
    wanted = {out // times for out in range(begin, end)}
    assert set(range(*Reach(down=times).needs(begin, end, rows))) == wanted


@given(st.integers(1, 30), st.integers(0, 29), SMALL, st.data())
def test_a_slice_needs_its_rows(rows: int, start: int, step: int, data: st.DataObject) -> None:
    """From the first to the last that is picked."""
    picked = list(range(rows))[start::step]
    assume(picked)
    begin = data.draw(st.integers(0, len(picked) - 1))
    end = data.draw(st.integers(begin + 1, len(picked)))
    reach = Reach(up=step, before=-start, after=start - (step - 1))
    assert reach.needs(begin, end, rows) == (picked[begin], picked[end - 1] + 1)


@given(st.integers(1, 20), st.integers(0, 6), st.integers(0, 6), st.data())
def test_padding_needs_what_lies_inside_or_one_row_at_the_edge(
    rows: int, top: int, bottom: int, data: st.DataObject
) -> None:
    """Rows of padding alone still have the edge to repeat."""
    made = top + rows + bottom
    begin = data.draw(st.integers(0, made - 1))
    end = data.draw(st.integers(begin + 1, made))
    inside = [row - top for row in range(begin, end) if 0 <= row - top < rows]
    found = Reach(before=top, after=-top).needs(begin, end, rows)
    if inside:
        assert found == (inside[0], inside[-1] + 1)
    else:
        assert found == ((0, 1) if end <= top else (rows - 1, rows))


@given(st.integers(0, 200), st.integers(1, 40))
def test_shares_are_all_rows_once_in_order(rows: int, count: int) -> None:
    """And no two differ by more than a row."""
    shares = [share(rows, index, count) for index in range(count)]
    assert [row for begin, end in shares for row in range(begin, end)] == list(range(rows))
    lengths = [end - begin for begin, end in shares]
    assert max(lengths) - min(lengths) <= 1


@given(st.floats(0, 50), st.integers(0, 5), st.integers(0, 5), SMALL, SMALL)
def test_a_halo_never_shrinks_but_with_the_resolution(
    halo: float, before: int, after: int, up: int, down: int
) -> None:
    """Counted in rows of what is made."""
    reach = Reach(up, down, before, after)
    assert reach.widened(halo) * up / down >= halo - 1e-9
    assert reach.resizes == (up != down)
    assert SAME.widened(halo) == halo
