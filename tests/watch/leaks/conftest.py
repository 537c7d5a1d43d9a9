"""A card and a program for every test here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.watch.leaks.planted import program
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard


@pytest.fixture
def card() -> VirtualCard:
    """64 MiB."""
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


@pytest.fixture
def state() -> Iterator[Any]:
    """The module `mypkg.state`."""
    with program() as module:
        yield module
