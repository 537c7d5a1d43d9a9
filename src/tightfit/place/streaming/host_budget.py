"""How much of the host may be taken for masters, and how much of that may be held in place."""

from __future__ import annotations

import platform

import torch

from tightfit.card.host_memory import HostMemory
from tightfit.units import GIB

_KEPT_SHARE = 16
_MOST_KEPT = 2 * GIB


def host_room(memory: HostMemory) -> int:
    """Bytes that masters may newly take.

    What is available, of the machine and within the limit of our group of processes, but for a
    sixteenth of the total or 2 GiB, whichever is less: results, and everybody else, need some.
    """
    return max(0, memory.available - min(memory.total // _KEPT_SHARE, _MOST_KEPT))


def pin_budget(memory: HostMemory) -> int:
    """Bytes that may be held in place, of the same room: what is pinned is also taken.

    Windows, also beneath Linux (WSL), lets about half of RAM be pinned at most; AMD's driver
    obeys RLIMIT_MEMLOCK. A limit that is met only when it is tried is no error: see `Pins`.
    """
    budget = host_room(memory)
    if platform.system() == "Windows" or "microsoft" in platform.release().lower():
        budget = min(budget, memory.ram // 2)
    if torch.version.hip is not None:
        budget = min(budget, memory.lockable)
    return budget
