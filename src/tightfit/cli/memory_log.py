"""Where memory ends a job, its log is written beside the output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.api.memory_log import write_log
from tightfit.cli.asked import arguments

if TYPE_CHECKING:
    from tightfit.watch import Recorder


def log_path(out: Path) -> Path:
    """Beside the output, by its whole name: ``film.mp4`` has ``film.mp4.oom.json``."""
    return out.with_name(f"{out.name}.oom.json")


def write_memory_log(out: Path, error: BaseException, recorder: Recorder) -> Path | None:
    """Write the log if memory is the reason for `error`; where it is, or None."""
    path = log_path(out)
    return path if write_log(path, error, recorder, arguments=arguments.get()) else None
