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
    check_readable(path)
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    found: list[str | BadPrompt] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            found.append(BadPrompt(number, f"line {number} of {path} is not UTF-8 text"))
            continue
        strange = next((char for char in text if ord(char) < 32 and char != "\t"), None)
        if strange is None:
            found.append(text)
        else:
            reason = f"line {number} of {path} holds the control character {ord(strange)}"
            found.append(BadPrompt(number, reason))
    if not found:
        raise InputError(f"{path} holds no prompt: write one a line.")
    return tuple(found)
