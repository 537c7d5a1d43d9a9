"""`tightfit report`: what a trace, or the log of a job that memory ended, says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightfit.errors import InputError, UsageError

if TYPE_CHECKING:
    from tightfit.report.trace_file import Trace


def report(
    source: Annotated[
        Path, typer.Argument(metavar="TRACE|OOM.json", help="What --trace, or a failed job, wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="report.html", help="One page that works offline."),
    ] = None,
    as_modules: Annotated[
        bool, typer.Option("--modules", help="Reserved against allocated, block by block.")
    ] = False,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--snapshot", metavar="F.pickle", help="For python -m torch.cuda._memory_viz."
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", metavar="F.json", help="For Perfetto, or Chrome's viewer."),
    ] = None,
    as_csv: Annotated[
        Path | None, typer.Option("--csv", metavar="F.csv", help="Every event as a line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON, alone.")] = False,
) -> None:
    """Show a trace or an out-of-memory log: in short, block by block, or as a page."""
    from tightfit.media.files import whole_file
    from tightfit.report.trace_file import read_trace

    files = {"-o": out, "--snapshot": snapshot, "--timeline": timeline, "--csv": as_csv}
    if as_json and as_modules:
        raise UsageError("--json has the rows of --modules, too: drop one of the two.")
    _check(source, files)
    trace = read_trace(source)
    for option, path in files.items():
        if path is None:
            continue
        content = _content(option, trace)
        with whole_file(path) as part:
            part.write_bytes(content)
        if not as_json:
            typer.echo(str(path))
    if as_json:
        from tightfit.report.exports.tables import as_json as everything

        typer.echo(everything(trace))
    elif as_modules:
        from tightfit.report.modules import table

        typer.echo("\n".join(table(trace)))
    elif not any(files.values()):
        from tightfit.report.summary import summary

        typer.echo("\n".join(summary(trace)))


def _content(option: str, trace: Trace) -> bytes:
    if option == "--snapshot":
        from tightfit.report.exports.snapshot import as_snapshot

        return as_snapshot(trace)
    if option == "--timeline":
        from tightfit.report.exports.timeline import as_timeline

        return as_timeline(trace).encode()
    if option == "--csv":
        from tightfit.report.exports.tables import as_csv

        return as_csv(trace).encode()
    from tightfit.report.page import page

    return page(trace).encode()


def _check(source: Path, files: dict[str, Any]) -> None:
    """Refuse, before anything is written, a file in another's place, and one without a suffix."""
    from tightfit.media.files import check_writable

    taken = {source.resolve(): "what is read"}
    for option, path in files.items():
        if path is None:
            continue
        if not path.suffix:
            raise InputError(f"Cannot write {path}: give it a suffix, as {option} is shown with.")
        check_writable(path, (path.suffix.lower(),))
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{path} is {other} and {option}: give each a name of its own.")
