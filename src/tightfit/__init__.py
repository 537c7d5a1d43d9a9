"""tightfit runs image and video diffusion models on the memory your card has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api import (
        Frames,
        Generated,
        Plan,
        Result,
        Session,
        Watching,
        decode,
        decode_all,
        encode,
        encode_all,
        fit,
        fitted,
        generate,
        leakcheck,
        load_pipeline,
        load_weights,
        make_plan,
        memory_log,
        pack,
        pickles_allowed,
        placed,
        tiled,
        unfit,
        unpack,
        verify,
    )

__all__ = [
    "Frames",
    "Generated",
    "Plan",
    "Result",
    "Session",
    "Watching",
    "decode",
    "decode_all",
    "encode",
    "encode_all",
    "fit",
    "fitted",
    "generate",
    "leakcheck",
    "load_pipeline",
    "load_weights",
    "make_plan",
    "memory_log",
    "pack",
    "pickles_allowed",
    "placed",
    "tiled",
    "unfit",
    "unpack",
    "verify",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The public names come from `tightfit.api` when they are first used: torch takes seconds."""
    if name in __all__:
        from tightfit import api

        return getattr(api, name)
    raise AttributeError(f"module `tightfit` has no attribute `{name}`")
