"""`tightfit verify`: whether checkpoints are still what they were, and which tensor is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tightfit.cli import options as o

if TYPE_CHECKING:
    from tightfit.api.verifying import VerifiedFile

_MOST_NAMED = 5
_AGAINST = {
    "list": "as its hash list says",
    "packed": "as the hashes within it say",
    "latent": "as the hash within it says",
    "cache": "as its name in the cache says",
}


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Files, indices of shards, or folders."),
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Write hash lists beside the files instead.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone: file by file what differs.")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare checkpoints with their hash lists, and name the tensor that differs."""
    from rich.markup import escape

    from tightfit import api
    from tightfit.cli import show
    from tightfit.cli.pack import bar

    with bar("verify", shown=not quiet) as progress:
        done = api.verify(paths, write=write, progress=progress)
    if as_json:
        typer.echo(json.dumps(done.as_dict(), indent=2))
    else:
        for each in done.files:
            if not each.good:
                show.notices.print(f"[red]differs:[/red] {escape(_told(each))}")
            elif not quiet:
                show.results.print(escape(_told(each)))
    if not done.good:
        raise typer.Exit(1)


def _told(each: VerifiedFile) -> str:
    """One line."""
    from tightfit.units import format_bytes

    if each.error is not None:
        return each.error
    tensors = f"{each.tensors} tensor{'' if each.tensors == 1 else 's'}"
    what = f"{each.path}: {tensors}, {format_bytes(each.size_bytes)}"
    if each.against == "written":
        return f"{what}, hashes written to {each.path.name}.sha256.json"
    if each.against is None:
        return f"{what}, nothing says what it should be"
    if each.good:
        return f"{what}, {_AGAINST[each.against]}"
    named = [f"`{wrong.name}` ({wrong.kind})" for wrong in each.differences[:_MOST_NAMED]]
    more = len(each.differences) - len(named)
    return f"{each.path}: {', '.join(named)}{f' and {more} more' if more else ''}"
