"""`tightfit generate --prompts FILE --engine ray`: prompts to pictures and clips on many cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tightfit.cli import batch, cluster, show
from tightfit.cli.generate import what_was_made
from tightfit.cli.options import Voice

if TYPE_CHECKING:
    from tightfit.api.batches.batch import ItemDone


def generate_many(voice: Voice, pipeline: str, prompts: Path, *, out: Path, **options: Any) -> None:
    """One bar, a line for each picture; exits as a batch does."""
    from tightfit.cluster.generating import generate_on_cards

    def note(text: str) -> None:
        if not voice.quiet:
            show.notices.print(escape(f"note: {text}"))

    batch.run_batch(
        voice,
        "generate",
        lambda shown: generate_on_cards(
            pipeline,
            prompts,
            out=out,
            tell=shown.tell,
            finish=shown.finish,
            note=note,
            **options,
        ),
        bar=cluster.bar(voice),
        made=_say_made,
    )


def _say_made(voice: Voice, done: ItemDone) -> None:
    """A line for each picture or clip of one prompt."""
    if done.report is None:
        return
    show.tell(voice, replace(done.report, command="decode"))
    for each in done.report.output["items"]:
        if done.outcome == "kept":
            what = f"was there already, seed {each['seed']}"
        else:
            what = what_was_made(each["settings"], each["seed"], done.report)
        show.wrote(voice, Path(each["path"]), what)
