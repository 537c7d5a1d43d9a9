"""The fixture `tightfit_leakcheck`, which pytest finds where tightfit is installed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tightfit.api.leaking import LeakCheck

_OF_PYTEST = ("*funcargs*", "*cached_result*")
"""Values of fixtures, which pytest drops after all of them have ended."""
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed: their tracebacks are kept, and hold what they held."""
    report = yield
    if call.excinfo is not None:
        item.stash[_failed] = True
    return report


@pytest.fixture
def tightfit_leakcheck(request: pytest.FixtureRequest) -> Iterator[LeakCheck]:
    """After the test nothing that it made may be on any card; a test that failed is not checked.

    The value is a `LeakCheck`: its `allow` takes kinds of hold and patterns for chains.
    """
    from tightfit.api.leaking import leakcheck

    check = leakcheck(allow=_OF_PYTEST)
    check.begin()
    yield check
    if _failed in request.node.stash:
        check.drop()
    else:
        check.end()
