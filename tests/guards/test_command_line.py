"""The command line's surface: commands and options, as users type them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tightfit.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
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
    "--allow-pickle",
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
    | {"--seconds", "--pad", "--sample"}
    | {"--engine", "--address", "--cards", "--shards", "--shard-format"},
    "decode": MEMORY | {"-o", "--out", "--vae", "--allow-nan", "--bits", "--quality", "--sound"},
    "generate": MEMORY
    | {"-o", "--out", "--prompt", "--prompts", "--negative", "--width", "--height", "--frames"}
    | {"--fps", "--steps", "--guidance", "--seed", "--num", "--image", "--mask", "--strength"}
    | {"--scheduler", "--lora", "--transformer", "--vae", "--text-encoder", "--base"}
    | {"--weights", "--latents", "--preview", "--resume"}
    | {"--engine", "--address", "--cards"},
    "demo": {"--input", "-o", "--out"},
    "plan": (MEMORY - {"--overlap", "--no-estimate", "--allow-cpu", "--report", "--trace"})
    - {"--verbose", "-v"}
    | {"--width", "--height", "--frames", "--batch", "--solve", "--dry-run", "--json"},
    "pack": {"-o", "--out", "--unpack", "--json", "--quiet", "-q"},
    "verify": {"--write", "--json", "--quiet", "-q"},
    "report": {"-o", "--out", "--modules", "--snapshot", "--timeline", "--csv", "--json"},
    "watch": set(),
    "rerun": {"--card", "--vram", "--recorded", "--json"},
    "leaks": {"--json"},
    "doctor": {"--card", "--json", "--clear-cache"},
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


@pytest.mark.parametrize("name", SURFACE)
def test_a_command_has_a_page_that_names_its_options(name: str) -> None:
    """Those that commands share stand on the page of `encode`."""
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    shared = (DOCS / "encode.md").read_text(encoding="utf-8")
    one_of_each = {"--out": "-o", "--verbose": "-v", "--quiet": "-q"}
    for option in SURFACE[name]:
        wanted = one_of_each.get(option, option)
        assert wanted in (shared if option in MEMORY else page), f"{option} is not on the page"


def test_help_needs_no_torch() -> None:
    """Importing the command line costs no torch: `--help` answers at once."""
    code = "import sys, tightfit.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
