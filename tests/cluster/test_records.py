"""What stands beside the outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tightfit.api.batches.batch import ItemDone
from tightfit.cluster.records import FAILED, MANIFEST, Records
from tightfit.cluster.task import Finished, Task


def task(folder: Path, index: int) -> Task:
    name = f"item{index}"
    return Task(index, name, folder / f"{name}.mp4", folder / f"{name}.safetensors")


def finished(task: Task, outcome: str) -> Finished:
    if outcome == "failed":
        return Finished(task.index, ItemDone(task.source, task.out, "failed", "bad", 2))
    return Finished(task.index, ItemDone(task.source, task.out, outcome), "in", "out", 5)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_the_same_work_says_the_same_in_whatever_order_it_ends(tmp_path: Path) -> None:
    """Also when it was stopped and gone on with: lines come in the order of the items."""
    tasks = [task(tmp_path, index) for index in range(4)]
    texts = []
    for rounds in ([[0, 1, 2, 3]], [[3, 1], [2, 0]], [[2], [2, 3], [0, 1]]):
        for some in rounds:
            records = Records(tmp_path, tasks)
            for index in some:
                records.add(finished(tasks[index], "written"))
            records.write()
        texts.append((tmp_path / MANIFEST).read_text())
        (tmp_path / MANIFEST).unlink()
    assert texts[0] == texts[1] == texts[2]
    assert [json.loads(text)["name"] for text in texts[0].splitlines()] == [t.name for t in tasks]


def test_what_failed_is_told_apart_and_forgotten_when_it_is_done(tmp_path: Path) -> None:
    """With its sentence; once it comes through, no file of failures is left."""
    tasks = [task(tmp_path, index) for index in range(2)]
    records = Records(tmp_path, tasks)
    records.add(finished(tasks[0], "written"))
    records.add(finished(tasks[1], "failed"))
    records.write()
    assert [line["name"] for line in lines(tmp_path / MANIFEST)] == ["item0"]
    assert lines(tmp_path / FAILED)[0]["error"] == "bad"
    records = Records(tmp_path, tasks)
    records.add(finished(tasks[0], "kept"))
    records.add(finished(tasks[1], "written"))
    records.write()
    assert len(lines(tmp_path / MANIFEST)) == 2
    assert not (tmp_path / FAILED).exists()


def test_outputs_of_an_earlier_job_stay_on_the_list_while_they_are_there(tmp_path: Path) -> None:
    """A folder is filled by several jobs; a damaged line is dropped."""
    first, second = task(tmp_path, 0), Task(0, "z", tmp_path / "z.png", tmp_path / "z.safetensors")
    records = Records(tmp_path, [first])
    records.add(finished(first, "written"))
    records.write()
    first.out.write_bytes(b"there")
    with (tmp_path / MANIFEST).open("a") as file:
        file.write("{broken")
    for there in (True, False):
        records = Records(tmp_path, [second])
        records.add(finished(second, "written"))
        records.write()
        names = [line["name"] for line in lines(tmp_path / MANIFEST)]
        assert names == (["z", "item0"] if there else ["z"])
        first.out.unlink(missing_ok=True)
