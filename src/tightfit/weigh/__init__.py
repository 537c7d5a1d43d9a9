"""WHAT DOES IT WEIGH? Headers alone, the tensors of a module, and what a call on it will need."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.weigh.dry import dry_peak
    from tightfit.weigh.tensors import DEPTH, Held, Kind, identity, walk, weight_bytes, weights

__all__ = ["DEPTH", "Held", "Kind", "dry_peak", "identity", "walk", "weight_bytes", "weights"]


def __getattr__(name: str) -> Any:
    """What needs torch comes when it is used: a header is read without."""
    if name in __all__:
        home = "dry" if name == "dry_peak" else "tensors"
        return getattr(import_module(f"tightfit.weigh.{home}"), name)
    raise AttributeError(f"module `tightfit.weigh` has no attribute `{name}`")
