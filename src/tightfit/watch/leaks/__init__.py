"""WHO HOLDS IT? Two moments, what stayed between them, and the chain that leads to it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.watch.leaks.figures import three_lines
    from tightfit.watch.leaks.find import Found, what_stayed
    from tightfit.watch.leaks.leak import Hold, Leak
    from tightfit.watch.leaks.moment import Moment, Scope, look
    from tightfit.watch.leaks.rounds import Round, Rounds

_HOMES = {
    "Found": "find",
    "Hold": "leak",
    "Leak": "leak",
    "Moment": "moment",
    "Round": "rounds",
    "Rounds": "rounds",
    "Scope": "moment",
    "look": "moment",
    "three_lines": "figures",
    "what_stayed": "find",
}
__all__ = [
    "Found",
    "Hold",
    "Leak",
    "Moment",
    "Round",
    "Rounds",
    "Scope",
    "look",
    "three_lines",
    "what_stayed",
]


def __getattr__(name: str) -> Any:
    """What needs torch comes when it is used: leaks in a file are read without."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"tightfit.watch.leaks.{_HOMES[name]}"), name)
    raise AttributeError(f"module `tightfit.watch.leaks` has no attribute `{name}`")
