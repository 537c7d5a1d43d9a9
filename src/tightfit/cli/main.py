"""The command `tightfit`, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tightfit import __version__
from tightfit.cli.decode import decode
from tightfit.cli.demo import demo
from tightfit.cli.encode import encode
from tightfit.errors import TightfitError

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
    try:
        code = app(args=list(arguments), standalone_mode=False)
    except typer.TyperException as error:
        sentence = error.format_message().strip().rstrip(".")
        if sentence:  # without one, the help was asked for by giving no command
            typer.echo(f"error: {sentence}. See `tightfit --help`.", err=True)
        return BAD_USAGE
    except (typer.Abort, KeyboardInterrupt):
        code = CANCELLED
    except TightfitError as error:
        _complain(error)
        return error.exit_code
    except Exception as error:
        _complain(error)
        if {"-v", "--verbose"} & set(arguments):
            raise
        return FAILED
    if code == CANCELLED:
        typer.echo("cancelled: nothing was written", err=True)
    return code if isinstance(code, int) else DONE


def main() -> None:
    """The entry point: exits."""
    sys.exit(run(sys.argv[1:]))


def _complain(error: Exception) -> None:
    from tightfit.cli.show import complain

    complain(error)
