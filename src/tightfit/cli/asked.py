"""What was typed, for the log of a job that memory ends; and how often Ctrl-C was pressed."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
interrupts: ContextVar[Sequence[int]] = ContextVar("interrupts", default=())
