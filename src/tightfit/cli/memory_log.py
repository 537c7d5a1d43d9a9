"""Where memory ends a job, its log is written beside the output."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.cli.asked import arguments
from tightfit.errors import InputError, MemoryShortage, TightfitError
from tightfit.media.files import whole_file
from tightfit.report.oom_log import MOST_EVENTS, as_text, oom_log
from tightfit.report.record import Report

if TYPE_CHECKING:
    from tightfit.watch import Recorder


def log_path(out: Path) -> Path:
    """Beside the output, by its whole name: ``film.mp4`` has ``film.mp4.oom.json``."""
    return out.with_name(f"{out.name}.oom.json")


def write_memory_log(out: Path, error: BaseException, recorder: Recorder) -> Path | None:
    """Write the log if memory is the reason for `error`; where it is, or None.

    A log that cannot be written must not hide the error, so then there is none.
    """
    if not ended_by_memory(error):
        return None
    report = getattr(error, "report", None)
    log = oom_log(
        arguments.get(),
        error=str(error),
        report=report.as_dict() if isinstance(report, Report) else None,
        header=recorder.header(),
        events=recorder.newest(MOST_EVENTS),
    )
    path = log_path(out)
    with suppress(InputError, OSError):
        with whole_file(path) as part:
            part.write_text(as_text(log), encoding="utf-8")
        return path
    return None


def ended_by_memory(error: BaseException) -> bool:
    """Whether memory is the reason, in whatever form it was raised."""
    if isinstance(error, MemoryShortage):
        return True
    if isinstance(error, TightfitError):
        return False
    from tightfit.run.ladder.oom import device_oom_behind

    return device_oom_behind(error) is not None
