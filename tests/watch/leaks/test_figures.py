"""Three figures, and what each means."""

from __future__ import annotations

from tightfit.card import Reading
from tightfit.units import MIB
from tightfit.watch.leaks import three_lines


def test_each_figure_says_what_gives_it_back() -> None:
    """Tensors, the cache, and what no unload gives back."""
    reading = Reading(
        total=100 * MIB,
        allocated=3 * MIB,
        reserved=10 * MIB,
        peak_allocated=None,
        peak_reserved=None,
        context=20 * MIB,
        held_by_others=5 * MIB,
    )
    allocated, reserved, context = three_lines(reading)
    assert allocated == "allocated: 3.0 MiB in tensors of this process"
    assert "10.0 MiB" in reserved
    assert "7.0 MiB is cache that `trim` gives back" in reserved
    assert "20.0 MiB for the device context" in context
    assert "5.0 MiB held by other programs" in context


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    """Never a zero."""
    lines = three_lines(Reading(1, None, None, None, None, None, None))
    assert all("unknown" in line for line in lines)
    assert not any("0 B" in line for line in lines)
