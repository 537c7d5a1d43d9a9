"""The library's door."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api.coding import decode, encode
    from tightfit.api.result import Frames, Result
    from tightfit.api.work import Watching

__all__ = ["Frames", "Result", "Watching", "decode", "encode"]

_HOMES = {"decode": "coding", "encode": "coding", "Frames": "result", "Result": "result"}


def __getattr__(name: str) -> Any:
    """Names come when they are used: a plan from headers needs no torch."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"tightfit.api.{_HOMES.get(name, 'work')}"), name)
    raise AttributeError(f"module `tightfit.api` has no attribute `{name}`")
