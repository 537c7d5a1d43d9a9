"""Settings of this process, frozen; the only reader (and the only writer) of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import UsageError

ALLOCATORS = {
    "native": "backend:native",
    "async": "backend:cudaMallocAsync",
    "expandable": "expandable_segments:True",
}
"""CUDA allocators by our names, and how PyTorch's variables ask for each."""
EVENTS_VARIABLE = "TIGHTFIT_EVENTS"
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Settings:
    """What the environment says.

    Attributes:
        cache_dir: where learnt figures are kept.
        allocator: the CUDA allocator the environment asks for, or None where it is silent.
        allocator_words: the variable that says so, as ``NAME=value``; None where there is none.
        visible_devices: CUDA_VISIBLE_DEVICES; None where it is not set.
        device_order: CUDA_DEVICE_ORDER; None where it is not set.
        events: TIGHTFIT_EVENTS, a file that events are appended to as they happen; None is none.
    """

    cache_dir: Path
    allocator: str | None
    allocator_words: str | None = None
    visible_devices: str | None = None
    device_order: str | None = None
    events: Path | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `environ` (default: the process's own)."""
        env = os.environ if environ is None else environ
        base = env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(
            cache_dir=Path(base) / "tightfit",
            allocator=_asked_allocator(env),
            allocator_words=next(
                (f"{v}={env[v]}" for v in ALLOCATOR_VARIABLES if env.get(v)), None
            ),
            visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
            device_order=env.get("CUDA_DEVICE_ORDER"),
            events=Path(env[EVENTS_VARIABLE]) if env.get(EVENTS_VARIABLE) else None,
        )


def environ_with_events(path: Path) -> dict[str, str]:
    """The environment of a process that appends its events to `path`."""
    return {**os.environ, EVENTS_VARIABLE: str(path)}


@contextmanager
def environ_with(values: Mapping[str, str]) -> Iterator[None]:
    """While inside, the environment says `values`, where it is silent: for processes started here.

    What a user has set is never changed.
    """
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def choose_allocator(name: str) -> None:
    """Make the process use allocator `name`; only before torch is imported can that be said.

    Raises `UsageError` when the name is unknown, or when the environment already asks for
    another allocator: a user's own choice is never changed behind their back.
    """
    if name not in ALLOCATORS:
        raise UsageError(f"--allocator `{name}` is unknown: use {', '.join(ALLOCATORS)}.")
    asked = _asked_allocator(os.environ)
    if asked == name:
        return
    if asked is not None:
        variable = next(v for v in ALLOCATOR_VARIABLES if v in os.environ)
        raise UsageError(
            f"--allocator `{name}` contradicts {variable}={os.environ[variable]}: "
            "drop one of the two."
        )
    present = [v for v in ALLOCATOR_VARIABLES if v in os.environ]
    variable = present[0] if present else ALLOCATOR_VARIABLES[1]
    os.environ[variable] = ",".join(filter(None, (os.environ.get(variable, ""), ALLOCATORS[name])))


def _asked_allocator(env: Mapping[str, str]) -> str | None:
    """The allocator that `env` names: one of `ALLOCATORS`, or None."""
    for variable in ALLOCATOR_VARIABLES:
        text = env.get(variable, "").lower().replace(" ", "")
        if "backend:cudamallocasync" in text:
            return "async"
        if "expandable_segments:true" in text:
            return "expandable"
        if "backend:native" in text:
            return "native"
    return None
