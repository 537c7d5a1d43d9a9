"""What was typed, for the log of a job that memory ends."""

from __future__ import annotations

from contextvars import ContextVar

arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
