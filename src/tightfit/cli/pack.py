"""`tightfit pack`: checkpoints in fewer bytes on the disk, and the same bytes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tightfit.cli import options as o
from tightfit.errors import Cancelled

if TYPE_CHECKING:
    from tightfit.api.packing.packing import PackSummary


def pack(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A safetensors file, a model's or pipeline's folder."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="OUT", help="A file for a file, else a folder.")
    ],
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Make the original files of packed ones again.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone: sizes in bytes, null for unknown.")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a checkpoint in fewer bytes without losing a bit, or the original of a packed one."""
    from tightfit import api
    from tightfit.cli import show

    work = api.unpack if unpack else api.pack
    with bar("unpack" if unpack else "pack", shown=not quiet) as progress:
        try:
            done = work(model, out, progress=progress)
        except KeyboardInterrupt as interrupt:  # typer would drop the note of what is kept
            raise Cancelled("The job was cancelled.") from interrupt
    if as_json:
        typer.echo(json.dumps(done.as_dict(), indent=2))
    else:
        show.wrote(o.Voice(verbose=False, quiet=quiet), out, _told(done))


@contextmanager
def bar(title: str, *, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar in bytes while inside; yields what it is told by."""
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from tightfit.cli.show import notices

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=notices,
        transient=True,
        disable=not (shown and notices.is_terminal),
    )
    with bar:
        task = bar.add_task(title, total=None)

        def progress(name: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title} {escape(name)}", completed=done, total=total)

        yield progress


def _told(done: PackSummary) -> str:
    """One line: how large it was and is, and what was there already."""
    from tightfit.units import format_bytes

    share = "" if done.ratio is None else f" ({done.ratio:.1%})"
    tensors = f"{done.packed} of {done.packed + done.raw} tensors packed"
    before, after = format_bytes(done.before_bytes), format_bytes(done.after_bytes)
    line = f"{before} to {after}{share}, {tensors}, checked, {done.seconds:.1f} s"
    kept = sum(part.kept for part in done.parts)
    if kept:
        line += f"; {kept} of {len(done.parts)} files were there already"
    return line
