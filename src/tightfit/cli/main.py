"""The command `tightfit`, and the one place where errors become exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from tightfit import __version__
from tightfit.cli import asked
from tightfit.cli.decode import decode
from tightfit.cli.demo import demo
from tightfit.cli.doctor import doctor
from tightfit.cli.encode import encode
from tightfit.cli.generate import generate
from tightfit.cli.leaks import leaks
from tightfit.cli.pack import pack
from tightfit.cli.plan import plan
from tightfit.cli.report import report
from tightfit.cli.rerun import rerun
from tightfit.cli.verify import verify
from tightfit.cli.watch import watch
from tightfit.errors import Cancelled, TightfitError

DONE = 0
FAILED = 1
BAD_USAGE = 2
CANCELLED = 130

app = typer.Typer(
    name="tightfit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Image and video diffusion models on the memory your card has.",
)
app.command()(demo)
app.command()(encode)
app.command()(decode)
app.command()(generate)
app.command()(plan)
app.command()(pack)
app.command()(verify)
app.command()(report)
app.command()(rerun)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(
    watch
)
app.command()(leaks)
app.command()(doctor)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tightfit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Image and video diffusion models on the memory your card has."""
    del version


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments`; the exit code (DESIGN §9)."""
    asked.arguments.set(tuple(arguments))
    with _interrupts() as interrupts:
        asked.interrupts.set(interrupts)
        return _run(arguments, interrupts)


def _run(arguments: Sequence[str], interrupts: list[int]) -> int:
    """The exit code; errors are said, and whatever comes of an interrupt is a cancel."""
    try:
        code = app(args=list(arguments), standalone_mode=False)
    except typer.TyperException as error:
        sentence = error.format_message().strip().rstrip(".")
        if sentence:  # without one, the help was asked for by giving no command
            typer.echo(f"error: {sentence}. See `tightfit --help`.", err=True)
        return BAD_USAGE
    except (typer.Abort, KeyboardInterrupt, Cancelled) as error:
        return _cancelled(error)
    except TightfitError as error:
        if interrupts:
            return _cancelled(error)
        _complain(error)
        return error.exit_code
    except Exception as error:
        if interrupts:
            return _cancelled(error)
        _complain(error)
        if {"-v", "--verbose"} & set(arguments):
            raise
        return FAILED
    if code == CANCELLED:  # typer's answer to an interrupt
        return _cancelled(None)
    return code if isinstance(code, int) else DONE


def _cancelled(error: BaseException | None) -> int:
    """Say what is there of the job: what the interrupt's note tells, or nothing."""
    cause = error.__cause__ if error is not None else None
    notes = getattr(cause, "__notes__", ())
    typer.echo(f"cancelled: {'; '.join(notes) or 'nothing was written'}", err=True)
    return CANCELLED


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The Ctrl-Cs so far: libraries turn KeyboardInterrupt into errors of their own."""
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield seen  # somebody else looks after it, or it is ignored
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread, where no interrupt arrives
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """The entry point: exits."""
    sys.exit(run(sys.argv[1:]))


def _complain(error: Exception) -> None:
    from tightfit.cli.show import complain

    complain(error)
