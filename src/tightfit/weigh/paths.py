"""Paths of modules within a module, such as ``blocks.3.attn``; the whole is the empty one."""

from __future__ import annotations

from collections.abc import Iterator


def holds(above: str, below: str) -> bool:
    """Whether the module at `above` is the one at `below`, or holds it."""
    return not above or above == below or below.startswith(f"{above}.")


def upwards(path: str) -> Iterator[str]:
    """`path`, and every path above it up to the empty one."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""
