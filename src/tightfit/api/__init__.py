"""The library's door."""

from tightfit.api.coding import Watching, decode, encode
from tightfit.api.result import Frames, Result

__all__ = ["Frames", "Result", "Watching", "decode", "encode"]
