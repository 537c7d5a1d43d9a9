"""`tightfit plan`: what a job will need, and whether it fits, before anything is loaded."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tightfit.cli import options as o

NOT_EVEN_STREAMED = 3


def plan(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="A safetensors or GGUF file, a model's or a pipeline's folder, random:NAME; or "
            "several.",
        ),
    ],
    width: Annotated[int | None, typer.Option("--width", metavar="W", help="In pixels.")] = None,
    height: Annotated[int | None, typer.Option("--height", metavar="H", help="In pixels.")] = None,
    frames: Annotated[int | None, typer.Option("--frames", metavar="N", help="Of a clip.")] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Items at once.")] = 1,
    solve: Annotated[
        str | None,
        typer.Option(
            "--solve",
            metavar="WHAT",
            help="vram: the smallest card for this job; size: the largest picture on this card; "
            "frames: the longest clip.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run a file's architecture on the meta device instead of using the shipped table.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone: sizes in bytes, null for unknown.")
    ] = False,
    card: o.CardName = None,
    vram: o.Vram = None,
    reserve_vram: o.ReserveVram = None,
    vram_mode: o.VramMode = "auto",
    allocator: o.Allocator = None,
    dtype: o.Dtype = "auto",
    tile: o.TileSize = "auto",
    allow_pickle: o.AllowPickle = False,
    quiet: o.Quiet = False,
) -> int:
    """Say what a job needs on a card, line by line, what binds, and what would change it."""
    from rich.console import Console

    from tightfit.api.planning.planning import ask
    from tightfit.api.planning.solving import answer
    from tightfit.weigh.files.pickles import pickles_allowed

    with pickles_allowed(allow_pickle):
        question = ask(
            models,
            width=width,
            height=height,
            frames=frames,
            batch=batch,
            card=card,
            vram=vram,
            reserve=reserve_vram,
            mode=vram_mode,
            allocator=allocator,
            dtype=dtype,
            tile=tile,
            dry_run=dry_run,
        )
        solved = None if solve is None else answer(question, solve)
        asked = question if solved is None else solved.question
        found = asked.plan()
    if as_json:
        values = {**asked.as_dict(), "solved": None if solved is None else solved.as_dict()}
        typer.echo(json.dumps(values, indent=2))
    elif not quiet:
        results = Console(highlight=False, soft_wrap=True, emoji=False)
        results.print(asked.heading, markup=False)
        if solved is not None:
            results.print(solved.sentence, markup=False)
        results.print(found.explain(), markup=False)
        for note in asked.notes:
            results.print(f"note: {note}.", markup=False)
    done = solved.found if solved is not None else found.fits
    return 0 if done else NOT_EVEN_STREAMED
