"""What was measured of this machine, kept between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.card.machine import Machine, MeasuredCard


def test_what_was_measured_is_there_for_the_next_process(tmp_path: Path) -> None:
    """By UUID, so that a card keeps its figures in another slot."""
    machine = Machine({"GPU-1": MeasuredCard(55, 9, 400)}, disk=2000)
    machine.keep(tmp_path / "cache")
    assert Machine.read(tmp_path / "cache") == machine


def test_what_was_not_measured_now_stays(tmp_path: Path) -> None:
    """A second look at one card does not forget the other, nor what it could not see."""
    Machine({"GPU-1": MeasuredCard(55, 9, 400), "GPU-2": MeasuredCard(25)}, 2000).keep(tmp_path)
    Machine({"GPU-1": MeasuredCard(54)}).keep(tmp_path)
    assert Machine.read(tmp_path) == Machine(
        {"GPU-1": MeasuredCard(54, 9, 400), "GPU-2": MeasuredCard(25)}, 2000
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "cards": {}, "disk": null}',
        '{"version": 1, "cards": {"GPU-1": {"link": -1}}, "disk": null}',
        '{"version": 1, "cards": {"GPU-1": {"speed": 1}}, "disk": null}',
        '{"version": 1, "cards": [], "disk": 1}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """Nothing is believed of it."""
    (tmp_path / "machine.json").write_text(text, encoding="utf-8")
    assert Machine.read(tmp_path) == Machine()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """Then it is measured again next time."""
    (tmp_path / "cache").write_text("a file in its place", encoding="utf-8")
    Machine(disk=5).keep(tmp_path / "cache")
    assert Machine.read(tmp_path / "cache") == Machine()
