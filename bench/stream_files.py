"""Results files of `stream.py`: which of its rows each has, beside those it had before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packed_rows import renamed
from rows import write
from stream_jobs import PACKED, Job
from stream_rows import StreamRow, beside, in_order, read_rows


@dataclass(frozen=True)
class Results:
    """A file that rows are written to as they come.

    Attributes:
        path: of it.
        of: which rows belong there, under which names.
        jobs: in whose order they stand.
        earlier: rows and versions that it had at first.
    """

    path: Path
    of: Callable[[Sequence[StreamRow]], list[StreamRow]]
    jobs: Sequence[Job]
    earlier: tuple[list[StreamRow], dict[str, Any]]

    @classmethod
    def raw(cls, path: Path, jobs: Sequence[Job]) -> Results:
        """Of everything but packed streaming."""
        return cls(path, _without_packed, jobs, _read(path))

    @classmethod
    def packed(cls, path: Path, jobs: Sequence[Job]) -> Results:
        """Of the jobs that packed streaming has, with it called ours."""
        return cls(path, lambda rows: renamed(rows, jobs), jobs, _read(path))

    def keep(
        self, rows: Sequence[StreamRow], *, machine: dict[str, Any], versions: dict[str, Any]
    ) -> None:
        """Write those of `rows` that belong here, and those of earlier that they do not replace."""
        before, then = self.earlier
        every = beside(before, self.of(rows), then=then, now=versions)
        if every:
            write(self.path, in_order(every, self.jobs), machine=machine, versions=versions)


def _without_packed(rows: Sequence[StreamRow]) -> list[StreamRow]:
    return [row for row in rows if row.who != PACKED]


def _read(path: Path) -> tuple[list[StreamRow], dict[str, Any]]:
    if not path.exists():
        return [], {}
    rows, _, versions = read_rows(path)
    return rows, versions
