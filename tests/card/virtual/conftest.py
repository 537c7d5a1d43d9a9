"""What tests of virtual cards share."""

from __future__ import annotations

import weakref

import pytest


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has opened no card yet."""
    empty: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
    for module in ("card", "keeper", "backend"):
        monkeypatch.setattr(f"tightfit.card.virtual.{module}.keepers", empty)
