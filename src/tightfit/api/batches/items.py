"""From what was given to the items of a batch: which file becomes which."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import InputError, UsageError

PICTURES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".webp", ".gif", ".tif", ".tiff", ".avif"),
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ts", ".mpg", ".mpeg", ".ogv", ".flv"),
)
"""What is taken of a folder, by the ending; a file that is named is taken whatever it is called."""
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".aac", ".aiff", ".m4a")
"""The same for a VAE of sound."""
LATENTS = (".safetensors", ".latent")


@dataclass(frozen=True)
class Item:
    """One input, and where it goes."""

    source: Path
    out: Path


def is_batch(sources: Iterable[str | Path], out: Path, *, folder_is_one: bool) -> bool:
    """Whether several things are meant: several inputs, a pattern, or a folder into a folder.

    `folder_is_one`: a folder of frames is one input, so it is a batch only where `out` is a folder.
    """
    given = [str(each) for each in sources]
    if len(given) != 1:
        return True
    if _is_pattern(given[0]):
        return True
    if not Path(given[0]).is_dir():
        return folder_is_one and out.is_dir()
    return out.is_dir() or not out.suffix or not folder_is_one


def find_items(
    sources: Iterable[str | Path],
    out: Path,
    kinds: tuple[str, ...],
    ending: Callable[[Path], str],
) -> tuple[Item, ...]:
    """The items in the order given; those of a folder or a pattern in natural order (2 before 10).

    Args:
        sources: files, folders (of which the files with an ending of `kinds` are meant), patterns.
        out: the folder of the outputs, which are named after the inputs; where two would have one
            name, by the whole name.
        ending: of the output for an input.

    Raises `UsageError` for none, `InputError` for a folder or pattern in which there is nothing.
    """
    found = list(dict.fromkeys(path for each in sources for path in _paths(each, kinds)))
    if not found:
        raise UsageError("a batch takes files, folders or patterns such as `*.png`.")
    stems = Counter(path.stem for path in found)
    names = [path.stem if stems[path.stem] == 1 else path.name for path in found]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"two of the inputs are called {twice[0]}: give each a batch of its own.")
    items = tuple(
        Item(path, out / f"{name}{ending(path)}") for path, name in zip(found, names, strict=True)
    )
    taken = {each.source.resolve() for each in items}
    for each in items:
        if each.out.resolve() in taken:
            raise UsageError(f"{each.out} is an input and an output: write to another folder.")
    return items


def _paths(source: str | Path, kinds: tuple[str, ...]) -> list[Path]:
    text = str(source)
    if _is_pattern(text):
        matched = [Path(each) for each in glob.glob(text, recursive=True)]
        if not matched:
            raise InputError(f"Cannot read {text}: no file matches it.")
        return sorted((each for each in matched if each.is_file()), key=natural)
    path = Path(text).expanduser()
    if not path.is_dir():
        return [path]
    inside = [
        each
        for each in path.iterdir()
        if each.suffix.lower() in kinds and not each.name.startswith(".") and each.is_file()
    ]
    if not inside:
        raise InputError(
            f"Cannot read {path}: it holds no file that ends in {', '.join(kinds)}; name the files."
        )
    return sorted(inside, key=natural)


def natural(path: Path) -> list[tuple[int, str]]:
    """A key by which 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(each), "") if each.isdecimal() else (-1, each) for each in parts]


def _is_pattern(text: str) -> bool:
    return glob.has_magic(text) and not Path(text).exists()
