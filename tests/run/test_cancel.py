"""A flag that stops a job."""

from __future__ import annotations

import threading

import pytest

from tightfit.errors import Cancelled
from tightfit.run.cancel import Cancel


def test_a_flag_that_is_not_set_stops_nothing() -> None:
    """Checking is free."""
    Cancel().check()


def test_a_flag_may_be_set_from_another_thread() -> None:
    """And stays set."""
    cancel = Cancel()
    thread = threading.Thread(target=cancel.set)
    thread.start()
    thread.join()
    for _ in range(2):
        with pytest.raises(Cancelled, match="cancelled") as caught:
            cancel.check()
        assert caught.value.exit_code == 130
