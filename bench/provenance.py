"""What the figures of a benchmark were taken on, and with which versions."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tightfit.card import Card


def machine_of(card: Card) -> dict[str, Any]:
    """What the figures were taken on."""
    found: dict[str, Any] = {
        "card": card.name,
        "total_bytes": card.read().total,
        "processors": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }
    if card.kind == "cuda":
        found["gpu"] = torch.cuda.get_device_properties(card.device).name
        with suppress(Exception):  # NVML is optional, and raises its own errors
            import pynvml

            pynvml.nvmlInit()
            found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found


def versions_of(commit: str | None) -> dict[str, Any]:
    if commit is None:
        with suppress(OSError, subprocess.CalledProcessError):
            command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
            commit = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
    found: dict[str, Any] = {"commit": commit, "python": platform.python_version()}
    for name in ("torch", "diffusers"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    cudnn: Any = torch.backends.cudnn
    found["cuda"] = torch.version.cuda
    found["cudnn"] = cudnn.version() if cudnn.is_available() else None
    return found
