"""What earlier jobs taught."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.run.ladder import Lessons


def test_nothing_is_known_of_what_was_never_tried() -> None:
    """No refusals, and no file."""
    assert Lessons().refusals("job") == 0


def test_a_lesson_is_learnt_and_unlearnt() -> None:
    """The last outcome counts."""
    lessons = Lessons()
    lessons.learn("job", 3)
    assert lessons.refusals("job") == 3
    lessons.learn("job", 0)
    assert lessons.refusals("job") == 0


def test_lessons_last_from_process_to_process(tmp_path: Path) -> None:
    """In a file whose folder is made when there is something to write, whole or not at all."""
    path = tmp_path / "deep" / "lessons.json"
    Lessons(path).learn("job", 0)
    assert not path.exists()
    Lessons(path).learn("job", 3)
    assert Lessons(path).refusals("job") == 3
    assert [file.name for file in path.parent.iterdir()] == ["lessons.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"job": "many"}', "null", '"x"', '{"job": Infinity}', '{"job": null}']
)
def test_a_damaged_file_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    """It is written anew with the next lesson."""
    path = tmp_path / "lessons.json"
    path.write_text(text, encoding="utf-8")
    lessons = Lessons(path)
    assert lessons.refusals("job") == 0
    lessons.learn("job", 2)
    assert Lessons(path).refusals("job") == 2


def test_a_file_that_cannot_be_read_or_written_stops_nothing(tmp_path: Path) -> None:
    """A folder in its place, say; also bytes that are no text."""
    (tmp_path / "lessons.json").mkdir()
    lessons = Lessons(tmp_path / "lessons.json")
    lessons.learn("job", 1)
    assert lessons.refusals("job") == 1
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert Lessons(binary).refusals("job") == 0


def test_old_lessons_make_room_for_new_ones() -> None:
    """The file stays small."""
    lessons = Lessons()
    for at in range(600):
        lessons.learn(f"job {at}", 1)
    assert lessons.refusals("job 0") == 0
    assert lessons.refusals("job 599") == 1
