"""WHAT DOES IT WEIGH? The tensors of a module, and what a call on it will need."""

from tightfit.weigh.dry import dry_peak
from tightfit.weigh.tensors import Held, Kind, identity, walk, weight_bytes, weights

__all__ = ["Held", "Kind", "dry_peak", "identity", "walk", "weight_bytes", "weights"]
