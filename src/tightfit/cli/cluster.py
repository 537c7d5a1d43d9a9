"""The options of a job on many cards, written once, and what is shown of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.progress import Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from tightfit.cli.batch import usual_bar
from tightfit.cli.options import Voice
from tightfit.errors import UsageError

ENGINES = ("local", "ray")
_MANY = "Many cards"

Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="E",
        help="local: one after the other. ray: on all cards at once.",
        rich_help_panel=_MANY,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="A Ray cluster that runs. Default: one is started for this job.",
        rich_help_panel=_MANY,
    ),
]
Cards = Annotated[
    str | None,
    typer.Option(
        "--cards",
        metavar="C,C",
        help="cuda:0,cuda:1 or virtual:2x6GiB. Default: every CUDA card, else cpu.",
        rich_help_panel=_MANY,
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        metavar="N",
        help="Put N outputs into one file.",
        rich_help_panel=_MANY,
    ),
]
ShardFormat = Annotated[
    str | None,
    typer.Option(
        "--shard-format",
        metavar="F",
        help="safetensors (default) or webdataset.",
        rich_help_panel=_MANY,
    ),
]


def is_on_many(engine: str, voice: Voice, *, card: str | None, options: dict[str, Any]) -> bool:
    """Whether `engine` is Ray; `options` are those that go with it. Raises `UsageError`."""
    if engine not in ENGINES:
        raise UsageError(f"--engine `{engine}` is unknown: use {' or '.join(ENGINES)}.")
    if engine == "local":
        for name, value in options.items():
            if value is not None:
                raise UsageError(f"{name} goes with --engine ray: give that too, or drop {name}.")
        return False
    if card is not None:
        raise UsageError("--card names one card; with --engine ray, name them with --cards.")
    if voice.trace is not None:
        raise UsageError("--trace watches one process; drop it with --engine ray.")
    return True


def bar(voice: Voice) -> Progress:
    """Items, throughput, the time that is left, and failures."""
    return usual_bar(voice, _Rate(), TimeRemainingColumn(elapsed_when_finished=True), _Failures())


class _Rate(ProgressColumn):
    """Items a second since the start."""

    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0.0
        return Text(f"{task.completed / seconds:.2f}/s" if seconds and task.completed else "")


class _Failures(ProgressColumn):
    """How many failed, where any did."""

    def render(self, task: Task) -> Text:
        count = task.fields.get("failures", 0)
        return Text(f"{count} failed" if count else "", style="red")
