"""What is found again as it was."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
from torch import nn

from tightfit.run.fitting.aside import nothing_lasts


class Plain:
    """An object that a call is given."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept


def fill(container: Any) -> None:
    if isinstance(container, dict):
        container["new"] = 1
    elif isinstance(container, set):
        container.add("new")
    else:
        container.append("new")


KINDS: tuple[Any, ...] = (dict, OrderedDict, list, set, deque)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("where", ["module", "child", "given", "nested"])
def test_containers_are_what_they_held(kind: Any, full: bool, where: str) -> None:
    """Empty or not, of the module, of a part of it, or of what a call is given."""
    module, given = nn.Sequential(nn.Linear(2, 2)), Plain(None)
    container = kind([("old", 1)] if full else [])
    before = list(container)
    if where == "module":
        module.kept = container
    elif where == "child":
        module[0].kept = container
    else:
        given.kept = [container] if where == "nested" else container
    with nothing_lasts(module, [given]):
        fill(container)
        assert list(container) != before
    assert list(container) == before


@pytest.mark.parametrize("table", ["_forward_hooks", "_backward_pre_hooks", "_modules"])
def test_tables_of_hooks_and_parts_are_what_they_held(table: str) -> None:
    """Most of them are empty."""
    module = nn.Linear(2, 2)
    with nothing_lasts(module, []):
        getattr(module, table)["new"] = nn.Identity()
        module.attribute = 1
    assert not getattr(module, table)
    assert not hasattr(module, "attribute")
