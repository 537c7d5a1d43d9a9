"""WHAT DOES IT WEIGH? The tensors of a module, and what a call on it will need."""

from tightfit.weigh.dry import dry_peak
from tightfit.weigh.tensors import DEPTH, Held, Kind, identity, walk, weight_bytes, weights

__all__ = ["DEPTH", "Held", "Kind", "dry_peak", "identity", "walk", "weight_bytes", "weights"]
