"""The options that commands share, written once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_MEMORY = "Memory"
_OUTPUT = "Output"

VaeSpec = Annotated[
    str,
    typer.Option(
        "--vae",
        metavar="SPEC",
        help="random:NAME, mini:wan2.1-vae, a diffusers folder, a safetensors file or a hub id.",
    ),
]
CardName = Annotated[
    str | None,
    typer.Option(
        "--card",
        metavar="C",
        help="cuda:0, cpu, virtual:SIZE or virtual:NAME. Default: cuda:0 if present, else cpu.",
        rich_help_panel=_MEMORY,
    ),
]
CardNames = Annotated[
    str | None,
    typer.Option(
        "--card",
        metavar="C",
        help="cuda:0, cpu, virtual:SIZE or virtual:NAME; several: cuda:0,cuda:1, virtual:2x6GiB.",
        rich_help_panel=_MEMORY,
    ),
]
Vram = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE",
        help="The budget: 6GiB, 80% of the card, or -1GiB to leave that much.",
        rich_help_panel=_MEMORY,
    ),
]
ReserveVram = Annotated[
    str | None,
    typer.Option(
        "--reserve-vram",
        metavar="SIZE",
        help="Kept free for other programs.",
        rich_help_panel=_MEMORY,
    ),
]
VramMode = Annotated[
    str,
    typer.Option(
        "--vram-mode",
        metavar="M",
        help="Weights: auto, high (all resident), low (only what saves time), none (all streamed).",
        rich_help_panel=_MEMORY,
    ),
]
Allocator = Annotated[
    str | None,
    typer.Option(
        "--allocator",
        metavar="A",
        help="native, async or expandable; what the environment says is never changed.",
        rich_help_panel=_MEMORY,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="D",
        help="auto (as stored), float32, float16 or bfloat16.",
        rich_help_panel=_MEMORY,
    ),
]
TileSize = Annotated[
    str,
    typer.Option(
        "--tile",
        metavar="T",
        help="auto, off, N, HxW or FRAMESxHxW in pixels; a size forces tiles.",
        rich_help_panel=_MEMORY,
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="N",
        help="N or FRAMESxN in pixels, below the tile. Default: a quarter of the tile.",
        rich_help_panel=_MEMORY,
    ),
]
NoEstimate = Annotated[
    bool,
    typer.Option(
        "--no-estimate",
        help="Try each way without asking the planner first.",
        rich_help_panel=_MEMORY,
    ),
]
AllowCpu = Annotated[
    bool,
    typer.Option(
        "--allow-cpu",
        help="Let the CPU do what the card cannot.",
        rich_help_panel=_MEMORY,
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Read the tensors of pickles (.ckpt, .pt, .bin); no other code of theirs is run.",
        rich_help_panel=_MEMORY,
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="R.json", help="Write what happened.", rich_help_panel=_OUTPUT
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="T", help="Write every event as JSON lines.", rich_help_panel=_OUTPUT
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Say every try.", rich_help_panel=_OUTPUT),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.", rich_help_panel=_OUTPUT)]


@dataclass(frozen=True)
class Voice:
    """How much a command says, and which records it leaves.

    Attributes:
        verbose, quiet: of the command line.
        report, trace: files to write, or None.
    """

    verbose: bool
    quiet: bool
    report: Path | None = None
    trace: Path | None = None
