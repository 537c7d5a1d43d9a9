"""Memory that is asked for where it is no loss to be refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from tightfit.run.ladder.oom import device_oom_behind
from tightfit.run.ladder.release import cut

T = TypeVar("T")


def unless_full(make: Callable[[], T]) -> T | None:
    """What `make` gives; None where the device had no room for it, and nothing was done about it.

    Any other error passes through.
    """
    outside = sys.exception()
    try:
        return make()
    except BaseException as error:
        if device_oom_behind(error, outside=outside) is None:
            raise
        cut(error, outside=outside)
    return None
