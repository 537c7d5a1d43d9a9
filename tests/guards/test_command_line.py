"""The command line's surface: commands and options, as users type them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from tightfit.cli.main import app

MEMORY = {
    "--card",
    "--vram",
    "--reserve-vram",
    "--vram-mode",
    "--allocator",
    "--dtype",
    "--tile",
    "--overlap",
    "--no-estimate",
    "--allow-cpu",
    "--report",
    "--trace",
    "--verbose",
    "-v",
    "--quiet",
    "-q",
}
SURFACE = {
    "encode": MEMORY
    | {"-o", "--out", "--vae", "--keep-alpha", "--background", "--frames", "--fps"}
    | {"--pad", "--sample"},
    "decode": MEMORY | {"-o", "--out", "--vae"},
    "demo": {"--input", "-o", "--out"},
}


def test_these_commands_and_no_others() -> None:
    """A command comes or goes on purpose."""
    assert set(typer.main.get_command(app).commands) == set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_a_command_has_these_options_and_no_others(name: str) -> None:
    """An option comes or goes on purpose, and every one says what it is for."""
    command = typer.main.get_command(app).commands[name]
    options = [each for each in command.params if each.param_type_name == "option"]
    found = {form for each in options for form in (*each.opts, *each.secondary_opts)}
    assert found - {"--help"} == SURFACE[name]
    assert command.help
    assert all(each.help for each in options)


def test_help_needs_no_torch() -> None:
    """Importing the command line costs no torch: `--help` answers at once."""
    code = "import sys, tightfit.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
