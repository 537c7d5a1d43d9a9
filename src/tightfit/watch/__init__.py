"""WRITE DOWN WHAT HAPPENED."""

from tightfit.watch.recorder import Recorder

__all__ = ["Recorder"]
