"""What stands beside the outputs: what was made of what, and what failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tightfit.cluster.task import Finished, Task
from tightfit.media.files import whole_file

MANIFEST, FAILED = "manifest.jsonl", "failed.jsonl"
_EVERY = 30.0
"""Seconds between two writings while a job runs."""


class Records:
    """``manifest.jsonl``, a line for each output that is there, and ``failed.jsonl``.

    Both are written whole, now and then and at the end, and say the same however often a job was
    stopped: lines come in the order of the items, behind them those of earlier jobs whose outputs
    are still there.
    """

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        """An absent or damaged file knows nothing."""
        self._folder = folder
        self._tasks = {task.index: task for task in tasks}
        self._places = {task.name: task.index for task in tasks}
        self._lines = {line["name"]: line for line in _read(folder / MANIFEST)}
        self._failed: dict[int, dict[str, Any]] = {}
        self._written = time.monotonic()

    def add(self, finished: Finished) -> None:
        """One item ended."""
        task, done = self._tasks[finished.index], finished.done
        if done.outcome == "failed":
            self._lines.pop(task.name, None)
            self._failed[task.index] = {
                "name": task.name,
                "source": str(done.source),
                "error": done.error,
                "exit_code": done.exit_code,
            }
        else:
            place = task.out if task.shard is None else task.shard
            self._lines[task.name] = {
                "name": task.name,
                "source": str(done.source),
                "source_sha256": finished.source_sha256,
                "out": place.name,
                "out_sha256": finished.out_sha256,
                "out_bytes": finished.out_bytes,
            }
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Both files, as of now. Raises `InputError` where the disk is full."""
        known = [line for line in self._lines.values() if self._stands(line)]
        last = len(self._places)
        known.sort(key=lambda line: (self._places.get(line["name"], last), line["name"]))
        _write(self._folder / MANIFEST, known)
        failed = [line for _, line in sorted(self._failed.items())]
        if failed or (self._folder / FAILED).exists():
            _write(self._folder / FAILED, failed)
        self._written = time.monotonic()

    def _stands(self, line: dict[str, Any]) -> bool:
        return line["name"] in self._places or (self._folder / str(line.get("out"))).is_file()


def _read(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("name"), str):
                found.append(line)
    except (OSError, ValueError, RecursionError):
        return found
    return found


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """An empty list leaves no file."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if not text:
        path.unlink(missing_ok=True)
        return
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
