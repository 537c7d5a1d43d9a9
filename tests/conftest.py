"""What every test stands on: its own cache, fixed threads and seeds, and no surprise skips."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

_plain = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples on every machine: a commit is red or green, not lucky. What they miss is looked
# for by hand with `pytest --hypothesis-profile=search`, which draws others each time.
settings.register_profile("tightfit", _plain, derandomize=True, max_examples=40)
settings.register_profile("search", _plain, max_examples=2000)
settings.load_profile("tightfit")


HEAP = (
    "tests/watch/leaks/",
    "tests/api/test_leaking.py",
    "tests/bench/test_pages.py",
    "tests/cases/test_l_leaks.py",
)
"""They walk through everything that is alive, so with all other tests there they take minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped, with the reason, where there is none.

    So are those of the `HEAP`, where others are collected beside them.
    """
    walks = [item for item in items if item.nodeid.startswith(HEAP)]
    for item in walks if len(walks) < len(items) else ():
        item.add_marker(pytest.mark.skip(reason="walks the heap: `make test` runs it by itself"))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA card; this machine has none"))


class _Imported:
    """What is imported stays: where it is frozen, collections need not walk it each time."""

    def __init__(self) -> None:
        self._modules = 0

    def freeze(self) -> None:
        """Where enough came since the last time; garbage goes before, so that it is not kept."""
        if len(sys.modules) > self._modules + 20:
            gc.collect()
            gc.freeze()
            self._modules = len(sys.modules)


@pytest.fixture(scope="session")
def _imported() -> _Imported:
    """One thread for arithmetic too, so the same bits everywhere."""
    torch.set_num_threads(1)
    return _Imported()


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _imported: _Imported) -> None:
    """Learnt figures go to a folder of this test, and random numbers start anew."""
    _imported.freeze()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
