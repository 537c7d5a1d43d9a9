"""LOOK AT THE MACHINE: what is here, how fast it is, and what would help."""

from tightfit.run.checkup.cache import CacheCheck, clear_cache, look_at_cache
from tightfit.run.checkup.gather import check_up
from tightfit.run.checkup.values import Advice, CardCheck, Checkup

__all__ = [
    "Advice",
    "CacheCheck",
    "CardCheck",
    "Checkup",
    "check_up",
    "clear_cache",
    "look_at_cache",
]
