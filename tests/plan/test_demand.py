"""Figures, units and demands: the values a plan is made from."""

from __future__ import annotations

import pytest

from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import UNKNOWN, Figure, Rate, weakest
from tightfit.units import MIB


def test_an_unknown_figure_is_none_and_counts_as_nothing_only_where_asked() -> None:
    """`known` is for sums that say what they leave out."""
    assert UNKNOWN.bytes is None
    assert UNKNOWN.known == 0
    assert Figure(5).known == 5


def test_a_figure_below_zero_and_a_rate_of_zero_are_refused() -> None:
    """Neither can be meant."""
    with pytest.raises(ValueError, match="below 0"):
        Figure(-1)
    with pytest.raises(ValueError, match="not above 0"):
        Rate(0.0)


def test_a_rate_gives_seconds_and_nothing_takes_no_time_at_any_rate() -> None:
    """Unknown on either side is unknown, unless there is nothing to do."""
    assert Rate(25e9).seconds(50e9) == 2.0
    assert Rate(None).seconds(1) is None
    assert Rate(25e9).seconds(None) is None
    assert Rate(None).seconds(0) == 0.0


def test_a_figure_made_from_others_has_the_weakest_of_their_sources() -> None:
    """A table is weaker than a prediction, and that than a measurement."""
    assert weakest(["measured", "table", "predicted"]) == "table"
    assert weakest(["measured", "predicted"]) == "predicted"
    assert weakest([]) == "measured"


def test_the_leaf_of_a_unit_is_its_largest_part() -> None:
    """Told outright, found among the parts, or the unit itself."""
    parts = (Unit("a.x", 2 * MIB), Unit("a.y", 4 * MIB))
    assert Unit("a", 6 * MIB).leaf == 6 * MIB
    assert Unit("a", 6 * MIB, largest=3 * MIB).leaf == 3 * MIB
    assert Unit("a", 6 * MIB, parts=parts).leaf == 4 * MIB


def test_the_scratch_of_a_unit_is_its_biggest_converted_copy() -> None:
    """One copy is alive at once, so parts do not add up."""
    parts = (Unit("a.x", MIB, converted=4 * MIB), Unit("a.y", MIB, converted=2 * MIB))
    assert Unit("a", 2 * MIB, parts=parts).scratch == 4 * MIB
    assert Unit("a", 2 * MIB, converted=8 * MIB).scratch == 8 * MIB


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"bytes": -1}, "below 0"),
        ({"bytes": 4, "converted": -1}, "below 0"),
        ({"bytes": 4, "share": -0.5}, "below 0"),
        ({"bytes": 4, "largest": 5}, "not within it"),
        ({"bytes": 4, "parts": (Unit("x", 3),)}, "do not add up to 4"),
        ({"bytes": 3, "parts": (Unit("x", 3, parts=(Unit("y", 3),)),)}, "has parts"),
    ],
)
def test_a_unit_that_cannot_be_is_refused(values: dict[str, object], says: str) -> None:
    """Where it is made, so that no plan is made from it."""
    with pytest.raises(ValueError, match=says):
        Unit("a", **values)  # type: ignore[arg-type]


def test_a_stage_has_one_unit_of_each_name_and_at_least_one_call() -> None:
    """Names are how a plan says what goes where."""
    with pytest.raises(ValueError, match="two units of one name"):
        Demand("denoise", (Unit("a", 1), Unit("a", 1)))
    with pytest.raises(ValueError, match="fewer than 1 calls"):
        Demand("denoise", (), calls=0)


def test_a_stage_without_ways_is_done_whole() -> None:
    """And its only way has the stage's own figures."""
    (way,) = Demand("decode", (), Figure(7), Figure(2), Figure(1)).ladder
    assert (way.name, way.exact) == ("whole", True)
    assert (way.activations.bytes, way.workspace.bytes, way.slack.bytes) == (7, 2, 1)
