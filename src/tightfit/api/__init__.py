"""The library's door."""

from tightfit.api.coding import decode, encode
from tightfit.api.result import Frames, Result
from tightfit.api.work import Watching

__all__ = ["Frames", "Result", "Watching", "decode", "encode"]
