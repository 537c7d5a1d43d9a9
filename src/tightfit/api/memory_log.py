"""The log of work that memory ended, for those who call the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.errors import InputError, MemoryShortage, TightfitError
from tightfit.media.files import check_writable, whole_file
from tightfit.report.oom_log import MOST_EVENTS, as_text, oom_log
from tightfit.report.record import Report

if TYPE_CHECKING:
    from tightfit.watch import Recorder

_SUFFIX = ".json"


@contextmanager
def memory_log(path: str | Path) -> Iterator[None]:
    """Where memory ends what is done inside, write the log that a maintainer asks for.

    ``with tightfit.memory_log("job.oom.json"): image = pipe(prompt)``. The error goes on as it was,
    with a note that says where the log is. It has what that of a command has: versions, the card,
    the ledger, every way that was tried, the report, and the last 1,000 events of what tightfit did
    (`encode`, `decode`, `generate`, a call of what `fit` or a `Session` has). There is no prompt in
    it, no content of a file, and nothing of the program around it. Nothing is written where memory
    is not the reason.

    Args:
        path: of the file, which ends in ``.json``; a folder has to be there. It is whole or absent,
            and one that was there is replaced.

    Raises:
        InputError: at once, where no such file can be written.
    """
    goal = Path(path)
    check_writable(goal, (_SUFFIX,))
    try:
        yield
    except Exception as error:
        recorder = error.recorder if isinstance(error, MemoryShortage) else None
        if write_log(goal, error, recorder):
            error.add_note(f"log: {goal} (`tightfit report` opens it)")
        raise


def write_log(
    path: Path,
    error: BaseException,
    recorder: Recorder | None,
    *,
    arguments: Sequence[str] = (),
) -> bool:
    """Write the log if memory is the reason for `error`; whether that was done.

    A log that cannot be written must not hide the error, so then there is none.

    Args:
        path: of the file.
        error: what the work ended with.
        recorder: of the work; None where it is not known.
        arguments: of the command line, if there was one.
    """
    if not ended_by_memory(error):
        return False
    if recorder is None:
        from tightfit.watch import Recorder

        recorder = Recorder()
    report = getattr(error, "report", None)
    log = oom_log(
        arguments,
        error=str(error),
        report=report.as_dict() if isinstance(report, Report) else None,
        header=recorder.header(),
        events=recorder.newest(MOST_EVENTS),
        attempts=_attempts(error),
    )
    with suppress(InputError, OSError):
        with whole_file(path) as part:
            part.write_text(as_text(log), encoding="utf-8")
        return True
    return False


def ended_by_memory(error: BaseException) -> bool:
    """Whether memory is the reason, in whatever form it was raised."""
    if isinstance(error, MemoryShortage):
        return True
    if isinstance(error, TightfitError):
        return False
    from tightfit.run.ladder.oom import device_oom_behind

    return device_oom_behind(error) is not None


def _attempts(error: BaseException) -> list[dict[str, object]]:
    """Those of the ladder that was climbed, as a report has them."""
    if not isinstance(error, MemoryShortage) or not error.attempts:
        return []
    from tightfit.run.ladder import Attempt

    return [asdict(each) for each in error.attempts if isinstance(each, Attempt)]
