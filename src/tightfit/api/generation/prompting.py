"""Prompts files: one prompt a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import InputError
from tightfit.media.files import check_readable


@dataclass(frozen=True)
class BadPrompt:
    """A line that is no prompt; the others are made all the same.

    Attributes:
        line: its number, from 1.
        reason: why.
    """

    line: int
    reason: str


def read_prompts(path: Path) -> tuple[str | BadPrompt, ...]:
    """The lines of `path` that are not empty, in UTF-8. Raises `InputError` where there is none."""
    return tuple(prompt for _, prompt in numbered_prompts(path))


def numbered_prompts(path: Path) -> tuple[tuple[int, str | BadPrompt], ...]:
    """Likewise, each with the number of its line, from 1."""
    check_readable(path)
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    found: list[tuple[int, str | BadPrompt]] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            bad = BadPrompt(number, f"line {number} of {path} is not UTF-8 text")
            found.append((number, bad))
            continue
        strange = next((char for char in text if ord(char) < 32 and char != "\t"), None)
        if strange is None:
            found.append((number, text))
        else:
            reason = f"line {number} of {path} holds the control character {ord(strange)}"
            found.append((number, BadPrompt(number, reason)))
    if not found:
        raise InputError(f"{path} holds no prompt: write one a line.")
    return tuple(found)
