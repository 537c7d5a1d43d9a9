"""Memory over time as text, from hand-made records."""

from __future__ import annotations

from typing import Any

from tightfit.report.chart import chart, phases


def trace() -> list[dict[str, Any]]:
    """A try that fails at 90 of 100 bytes, and two tiles that rise from a floor of 40."""
    memory = [(0.0, 0), (0.1, 40), (1.0, 90), (2.0, 40), (2.5, 60), (3.0, 40), (3.5, 60), (4, 40)]
    events = [
        {"t": at, "event": "memory", "allocated_bytes": size, "reserved_bytes": size}
        for at, size in memory
    ]
    events += [
        {"t": 0.1, "event": "attempt", "stage": "encode", "rung": "whole"},
        {"t": 1.5, "event": "oom", "stage": "encode", "rung": "whole"},
        {"t": 2.0, "event": "attempt", "stage": "encode", "rung": "tiles 8x8"},
        {"t": 4.0, "event": "done", "stage": "encode", "rung": "tiles 8x8"},
    ]
    return sorted(events, key=lambda event: float(event["t"]))


def test_the_failed_try_and_the_good_one_are_named_in_order() -> None:
    """Phases carry their times and whether they failed."""
    first, second = phases(trace())
    assert (first.name, first.failed) == ("encode, whole", True)
    assert (second.name, second.failed) == ("encode, tiles 8x8", False)
    assert first.stop <= second.start


def test_the_chart_has_the_asked_size_and_stays_inside() -> None:
    """Every line fits the width; the plot has as many rows as asked."""
    lines = chart(trace(), budget=100, width=60, height=10)
    assert all(len(line) <= 60 for line in lines)
    assert sum("│" in line or "┤" in line for line in lines) == 10
    assert "budget" in lines[0]


def test_the_floor_is_solid_and_the_peaks_are_light() -> None:
    """Four of ten rows are held throughout; the failed peak reaches the ninth."""
    drawn = chart(trace(), budget=100, width=70, height=10)[1:11]
    rows = [line[max(map(line.find, "│┤")) + 1 :] for line in drawn]
    assert all("█" in row for row in rows[-4:])
    assert not any("█" in row for row in rows[:5])
    assert "░" in rows[1] or "█" in rows[1] or any(c in rows[1] for c in "▁▂▃▄▅▆▇")
    assert rows[0].strip() == ""


def test_labels_of_any_size_stand_in_one_column() -> None:
    """Such as 682.7 KiB below 2.0 MiB, and 1023.9 MiB."""
    for budget in (2 * 2**20, 2**30 - 2**16, 2**40):
        lines = chart(trace(), budget=budget, width=70, height=12)[:13]
        assert {max(line.find(each) for each in "┬│┤") for line in lines} == {11}


def test_no_events_are_no_error() -> None:
    """A card that keeps no books has nothing to draw."""
    assert chart([], budget=100) == ["(no memory events)"]
