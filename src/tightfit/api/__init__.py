"""The library's door."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api.batches.coding_all import decode_all, encode_all
    from tightfit.api.coding import decode, encode
    from tightfit.api.fits import fit, fitted, unfit
    from tightfit.api.fitting import placed
    from tightfit.api.generation.generating import generate
    from tightfit.api.generation.making import Generated
    from tightfit.api.generation.whole_pipeline import load_pipeline
    from tightfit.api.leaking import leakcheck
    from tightfit.api.loading import load_weights
    from tightfit.api.memory_log import memory_log
    from tightfit.api.packing.packing import pack, unpack
    from tightfit.api.planning.planning import make_plan
    from tightfit.api.result import Frames, Result
    from tightfit.api.sharing.session import Session
    from tightfit.api.tiling import tiled
    from tightfit.api.verifying import verify
    from tightfit.api.work import Watching
    from tightfit.plan.plan import Plan
    from tightfit.weigh.files.pickles import pickles_allowed

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

_HOMES = {
    "Frames": "api.result",
    "Generated": "api.generation.making",
    "Plan": "plan.plan",
    "Result": "api.result",
    "Session": "api.sharing.session",
    "Watching": "api.work",
    "decode": "api.coding",
    "decode_all": "api.batches.coding_all",
    "encode": "api.coding",
    "encode_all": "api.batches.coding_all",
    "fit": "api.fits",
    "fitted": "api.fits",
    "generate": "api.generation.generating",
    "leakcheck": "api.leaking",
    "load_pipeline": "api.generation.whole_pipeline",
    "load_weights": "api.loading",
    "make_plan": "api.planning.planning",
    "memory_log": "api.memory_log",
    "pack": "api.packing.packing",
    "pickles_allowed": "weigh.files.pickles",
    "placed": "api.fitting",
    "tiled": "api.tiling",
    "unfit": "api.fits",
    "unpack": "api.packing.packing",
    "verify": "api.verifying",
}


def __getattr__(name: str) -> Any:
    """Names come when they are used: a plan from headers needs no torch."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"tightfit.{_HOMES[name]}"), name)
    raise AttributeError(f"module `tightfit.api` has no attribute `{name}`")
