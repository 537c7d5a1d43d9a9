"""A batch, as people see it: one bar, a line for each item, and a summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tightfit.cli import show
from tightfit.cli.asked import interrupts
from tightfit.cli.options import Voice
from tightfit.errors import Cancelled, UsageError
from tightfit.media.files import whole_file
from tightfit.watch import Recorder

if TYPE_CHECKING:
    from tightfit.api import Watching
    from tightfit.api.batches.batch import Batch, Finish, ItemDone, Tell
    from tightfit.api.batches.items import Item


@dataclass(frozen=True)
class Shown:
    """What a batch tells while it runs."""

    watching: Watching
    tell: Tell
    finish: Finish

    @property
    def told(self) -> dict[str, Any]:
        """As arguments of `encode_all` and `decode_all`."""
        return {"watching": self.watching, "tell": self.tell, "finish": self.finish}


def check_records(voice: Voice, out: Path) -> None:
    """Refuse, before any work, a report or trace that could not be written."""
    show.check_records(voice, out / "in", out / "out")
    if voice.report is not None and voice.report.resolve() == out.resolve():
        raise UsageError(f"{out} is the output and --report: give each a name of its own.")


def run_batch(
    voice: Voice,
    title: str,
    work: Callable[[Shown], Batch],
    *,
    bar: Progress | None = None,
    made: Callable[[Voice, ItemDone], None] | None = None,
) -> None:
    """Do `work`; afterwards the report and the summary are written. Exits where items failed.

    `bar` is one of its own columns; those that a description comes into are told of each item.
    `made` says what was made of one, where its input does not tell.
    """
    try:
        with _shown(voice, title, bar or usual_bar(voice), made or _say_made) as shown:
            done = work(shown)
    except (KeyboardInterrupt, Cancelled) as stop:  # typer would drop the note of what is done
        raise Cancelled("The batch was cancelled.") from stop
    if voice.report is not None:
        with whole_file(voice.report) as part:
            part.write_text(json.dumps(done.as_dict(), indent=2) + "\n", encoding="utf-8")
    if not voice.quiet:
        show.results.print(escape(done.summary))
    if not done.good:
        raise typer.Exit(done.exit_code)


def usual_bar(voice: Voice, *more: ProgressColumn) -> Progress:
    """Which item, how many of them, for how long, and `more`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *more,
        console=show.notices,
        transient=True,
        disable=voice.quiet or not show.notices.is_terminal,
    )


@contextmanager
def _shown(
    voice: Voice, title: str, bar: Progress, made: Callable[[Voice, ItemDone], None]
) -> Iterator[Shown]:
    from tightfit.api import Watching

    watching = Watching(Recorder(fine=voice.trace is not None))
    with bar:
        task = bar.add_task(title, total=None, failures=0)
        current = [""]

        def tell(behind: int, total: int, item: Item) -> None:
            current[0] = item.source.name
            bar.update(
                task, total=total, completed=behind, description=f"{title} {escape(current[0])}"
            )

        def progress(rung: str, done: int, total: int) -> None:
            part = f" {done}/{total}" if total > 1 else ""
            bar.update(task, description=f"{title} {escape(current[0])}, {rung}{part}")

        watching.progress = progress
        failures = [0]

        def finish(done: ItemDone) -> None:
            failures[0] += done.outcome == "failed"
            bar.update(task, failures=failures[0])
            _say(voice, done, made)

        try:
            yield Shown(watching, tell, finish)
        finally:
            if voice.trace is not None:
                with whole_file(voice.trace) as part:
                    watching.recorder.write(part)


def _say(voice: Voice, done: ItemDone, made: Callable[[Voice, ItemDone], None]) -> None:
    """What became of one item: results on stdout, what failed on stderr."""
    if interrupts.get():  # what a library made of one does not count as an item that failed
        raise KeyboardInterrupt
    if done.outcome == "failed":
        error = done.error or ""
        named = error if str(done.source) in error else f"{done.source}: {error}"
        show.notices.print(f"[red]error:[/red] {escape(named)}")
        return
    made(voice, done)


def _say_made(voice: Voice, done: ItemDone) -> None:
    if done.report is not None:
        show.tell(voice, done.report)
    if not voice.quiet:
        how = "was there already" if done.outcome == "kept" else f"of {done.source}"
        show.results.print(escape(f"{done.out}: {how}"))
