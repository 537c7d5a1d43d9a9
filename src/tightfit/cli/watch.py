"""`tightfit watch`: the ledger of a running job, as it moves."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from tightfit.errors import InputError
from tightfit.report.standing import Standing
from tightfit.settings import environ_with_events
from tightfit.units import format_bytes

_OFTEN = 0.1
_WIDTH = 40


def watch(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD…", help="What to run, such as tightfit or python.")
    ],
) -> None:
    """Run a command, and show the memory of what tightfit does in it; its exit code is ours."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, emoji=False)
    with tempfile.TemporaryDirectory(prefix="tightfit-watch-") as folder:
        events = Path(folder) / "events.jsonl"
        events.touch()
        standing = Standing()
        with (
            _start(command, events) as child,
            events.open(encoding="utf-8") as source,
            Live(_view(standing), console=console, transient=False, auto_refresh=False) as view,
        ):
            printed = [_pass_on(child.stdout, console), _pass_on(child.stderr, console)]
            running = True
            while running:
                running = _runs(child)
                for line in _lines(source):
                    standing.take(line)
                view.update(_view(standing), refresh=True)
            for thread in printed:
                thread.join()
    raise typer.Exit(child.returncode)


def _start(command: list[str], events: Path) -> subprocess.Popen[str]:
    """The command, with its output in our hands and its events in that file."""
    if command[0] == "tightfit":
        command = [sys.executable, "-m", "tightfit", *command[1:]]
    try:
        return subprocess.Popen(
            command,
            env=environ_with_events(events),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise InputError(f"Cannot run `{command[0]}`: {error.strerror or error}.") from error


def _runs(child: subprocess.Popen[str]) -> bool:
    """Whether it does, after a moment. An interrupt is its to answer: it got it as well."""
    try:
        child.wait(_OFTEN)
    except subprocess.TimeoutExpired:
        return True
    except KeyboardInterrupt:
        time.sleep(_OFTEN)
        return child.poll() is None
    return False


def _pass_on(output: IO[str] | None, console: Any) -> threading.Thread:
    """What the command prints, above the view."""

    def run() -> None:
        for line in output or ():
            console.print(line.rstrip("\n"), markup=False, soft_wrap=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _lines(source: IO[str]) -> list[dict[str, Any]]:
    """The events that came since the last look; one that is still being written comes next time."""
    found: list[dict[str, Any]] = []
    while True:
        at = source.tell()
        line = source.readline()
        if not line.endswith("\n"):
            source.seek(at)
            return found
        found.append(json.loads(line))


def _view(standing: Standing) -> Any:
    """A panel: the card, the networks, what is done, and what happened last."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    rows.add_column(justify="right")
    rows.add_column(justify="right")
    rows.add_column()
    top = max(standing.budget or 0, standing.peak_reserved, standing.peak, 1)
    for name, size in (
        ("allocated", standing.allocated),
        ("reserved", standing.reserved),
        ("peak", standing.peak or None),
        ("budget", standing.budget),
        ("other programs", standing.others),
    ):
        if size is not None:
            rows.add_row(name, format_bytes(size), "█" * round(_WIDTH * min(1.0, size / top)))
    for line, size in standing.ledger.items():
        if size:
            rows.add_row(Text(line, style="dim"), format_bytes(size), Text("planned", style="dim"))
    for name, network in standing.networks.items():
        where = "rests on the host"
        if not network.rests:
            where = f"{format_bytes(network.streamed)} streamed"
        rows.add_row(name, format_bytes(network.resident), where)
    count = f" {standing.done}/{standing.total}" if standing.total else ""
    now = ", ".join(filter(None, (standing.stage, standing.rung))) + count
    last = [Text(line, style="dim") for line in standing.last]
    return Panel(Group(rows, *last), title=now or "waiting for events", title_align="left")
