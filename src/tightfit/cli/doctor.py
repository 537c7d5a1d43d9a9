"""`tightfit doctor`: what this machine has, how fast it is, and what would help."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tightfit.cli import options as o


def doctor(
    card: o.CardName = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone: sizes in bytes, null for unknown.")
    ] = False,
    clear: Annotated[
        bool,
        typer.Option("--clear-cache", help="Empty the folder of learnt figures, and do no more."),
    ] = False,
) -> None:
    """Show cards, who holds their memory, links, host memory and disk, with advice."""
    from rich.console import Console

    from tightfit.run.checkup import check_up, clear_cache
    from tightfit.settings import Settings

    out = Console(highlight=False, emoji=False)
    if clear:
        from tightfit.cli.checkup_page import cleared

        gone = clear_cache(Settings.from_environ().cache_dir)
        if as_json:
            typer.echo(json.dumps({"version": 1, "cleared": asdict(gone)}, indent=2))
        else:
            out.print(cleared(gone), soft_wrap=True)
        return
    progress = Console(stderr=True)
    with progress.status("looking") as status:
        found = check_up(card, tell=lambda what: status.update(what))
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    from tightfit.cli.checkup_page import page

    for part in page(found):
        out.print(part)
