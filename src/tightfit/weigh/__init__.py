"""WHAT DOES IT WEIGH? Headers alone, the tensors of a module, and what a call on it will need."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.weigh.dry import dry_peak
    from tightfit.weigh.tensors import DEPTH, Held, Kind, identity, walk, weight_bytes, weights

__all__ = ["DEPTH", "Held", "Kind", "dry_peak", "identity", "walk", "weight_bytes", "weights"]


def __getattr__(name: str) -> Any:
    """Names come when they are used: a header is read without torch."""
    if name == "dry_peak":
        from tightfit.weigh.dry import dry_peak

        return dry_peak
    if name in __all__:
        from tightfit.weigh import tensors

        return getattr(tensors, name)
    raise AttributeError(f"module `tightfit.weigh` has no attribute `{name}`")
