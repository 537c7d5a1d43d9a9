"""One thread at a time for each module."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from torch import nn

from tightfit.place import alone


def enters(module: nn.Module) -> bool:
    """Whether another thread gets in within a moment; it leaves again."""
    inside = threading.Event()

    def work() -> None:
        with alone(module):
            inside.set()

    threading.Thread(target=work, daemon=True).start()
    return inside.wait(0.3)


def test_others_wait_for_the_same_module_and_for_no_other() -> None:
    """The same thread may enter twice; afterwards anybody may."""
    module, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with alone(module), alone(module):
        assert not enters(module)
        assert enters(other)
    assert enters(module)


def test_an_error_inside_lets_the_next_one_in() -> None:
    """The error path opens the door too."""
    module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="planted"), alone(module):
        raise ValueError("planted")
    assert enters(module)


def test_a_module_that_nobody_holds_is_gone() -> None:
    """The lock does not keep it."""
    module = nn.Linear(2, 2)
    with alone(module):
        pass
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
