"""Blocks by name, told apart where two networks call one the same."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.report.page.fields import Event, rows, text

Key = tuple[str, str]
"""A network and a block of it."""


def label(key: Key, *, networks: int) -> str:
    """The block's name, with its network where there are several."""
    network, block = key
    return f"{network}: {block}" if network and networks > 1 else block


def networks_of(events: Sequence[Event]) -> int:
    """How many networks have blocks in a trace."""
    found = set()
    for event in events:
        if event["event"] == "placed" or (
            event["event"] == "streamed_step" and rows(event, "blocks")
        ):
            found.add(text(event, "network"))
    return len(found)
