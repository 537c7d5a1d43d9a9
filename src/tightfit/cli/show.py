"""Printing: progress, the one info line, and errors. Notices go to stderr."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tightfit.cli.options import Voice
from tightfit.errors import InputError, TightfitError, UsageError
from tightfit.media.files import check_writable, whole_file
from tightfit.report.record import Report

if TYPE_CHECKING:
    from tightfit.api import Watching

notices = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
results = Console(highlight=False, soft_wrap=True, emoji=False)


def check_records(voice: Voice, source: Path, out: Path) -> None:
    """Refuse, before any work, a report or trace that could not be written, or in a file's place.

    `source` and `out` are what the job reads and writes.
    """
    if voice.verbose and voice.quiet:
        raise UsageError("-v and -q contradict each other: drop one of the two.")
    for path in (voice.report, voice.trace):
        if path is not None:
            check_writable(path, (path.suffix.lower(),))
            if not path.suffix:
                raise InputError(f"Cannot write {path}: give it a suffix, such as .json.")
    taken: dict[Path, str] = {}
    for role, path in (
        ("the input", source),
        ("the output", out),
        ("--report", voice.report),
        ("--trace", voice.trace),
    ):
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), role)
        if other != role:
            raise UsageError(f"{path} is {other} and {role}: give each a name of its own.")


@contextmanager
def watched(voice: Voice, title: str, *, out: Path | None = None) -> Iterator[Watching]:
    """A progress bar while inside; afterwards, also on error, the records are written.

    Where memory ends the job, so is its log, beside `out`.
    """
    from tightfit.api import Watching
    from tightfit.watch import Recorder

    watching = Watching(Recorder(fine=voice.trace is not None))
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notices,
        transient=True,
        disable=voice.quiet or not notices.is_terminal,
    )
    with bar:
        task = bar.add_task(title, total=None)

        def progress(rung: str, done: int, total: int) -> None:
            bar.tasks[0].total = total or None  # a stage that counts nothing moves to and fro
            bar.update(task, description=f"{title}, {rung}", completed=done)

        watching.progress = progress
        try:
            yield watching
        except Exception as error:
            if isinstance(error, TightfitError) and isinstance(error.report, Report):
                write_report(voice, error.report)
            _log(voice, out, error, watching)
            raise
        finally:
            if voice.trace is not None:
                with whole_file(voice.trace) as part:
                    watching.recorder.write(part)


def _log(voice: Voice, out: Path | None, error: Exception, watching: Watching) -> None:
    from tightfit.cli.memory_log import write_memory_log

    if out is None:
        return
    path = write_memory_log(out, error, watching.recorder)
    if path is not None and not voice.quiet:
        notices.print(escape(f"log: {path} (`tightfit report` opens it)"))


def write_report(voice: Voice, report: Report) -> None:
    """Write the report, if one was asked for."""
    if voice.report is not None:
        with whole_file(voice.report) as part:
            part.write_text(report.to_json(), encoding="utf-8")


def tell(voice: Voice, report: Report) -> None:
    """One line when a rung below the first was used; every try with -v."""
    if voice.quiet:
        return
    if voice.verbose:
        for attempt in report.attempts:
            reason = f": {attempt['reason']}" if attempt["reason"] else ""
            notices.print(
                escape(f"  {attempt['stage']}, {attempt['rung']}: {attempt['outcome']}{reason}")
            )
        for line in (*report.adjusted, *report.warnings):
            notices.print(escape(f"  {line}"))
    told: list[str] = []
    for first, last in _climbs([a for a in report.attempts if a["stage"] == report.command]):
        why = first["reason"] or first["outcome"]
        how = f"did not fit ({why})" if first["outcome"] == "skipped" else "ran out of memory"
        line = f"info: {report.command}d in {last['rung']}, complete; {first['rung']} {how}."
        if line not in told:
            notices.print(escape(line))
            told.append(line)


def _climbs(attempts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """The first and the last attempt of each thing that was coded in another way than the first."""
    begun: Mapping[str, Any] | None = None
    for each in attempts:
        first = each if begun is None else begun
        begun = None if each["outcome"] == "ok" else first
        if begun is None and first is not each:
            yield first, each


def wrote(voice: Voice, path: Path, what: str) -> None:
    """The result's line on stdout."""
    if not voice.quiet:
        results.print(escape(f"{path}: {what}"))


def complain(error: BaseException) -> None:
    """An error for people: our own message, or one line for what others raised."""
    if isinstance(error, TightfitError):
        notices.print(f"[red]error:[/red] {escape(str(error))}")
        return
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    notices.print(
        f"[red]error:[/red] {escape(f'The job failed: {type(error).__name__}: {first}')}\n"
        "Nothing was written. Try: run again with -v, or with --card cpu to see whether the card "
        "is the reason."
    )
