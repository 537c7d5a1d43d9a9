"""Which classes of diffusers' tests describe a pipeline, and what they make of it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SLOW = ("Slow", "Nightly", "Integration")
"""In the name of a class: it downloads true models."""


@dataclass(frozen=True)
class Client:
    """A class of tests that makes a tiny pipeline, and calls of it.

    Attributes:
        file: below their `tests/pipelines`, such as ``flux/test_pipeline_flux.py``.
        kind: the class.
    """

    file: str
    kind: type

    @property
    def name(self) -> str:
        """File and class."""
        return f"{self.file}::{self.kind.__name__}"

    @property
    def makes(self) -> str:
        """The class of its pipelines."""
        kind: Any = self.kind
        name: str = kind.pipeline_class.__name__
        return name

    def pipeline(self) -> Any:
        """A new one, on the host, with the same weights each time."""
        torch.manual_seed(0)
        kind: Any = self.kind
        case = kind()
        pipe = case.pipeline_class(**case.get_dummy_components())
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module):
                part.eval()
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def inputs(self, device: str) -> dict[str, Any]:
        """What it is called with, made on `device`, with generators drawn from the start."""
        torch.manual_seed(0)
        kind: Any = self.kind
        make: Callable[..., dict[str, Any]] = kind().get_dummy_inputs
        return make(device) if "device" in inspect.signature(make).parameters else make()


def modules_of(root: Path, pattern: str = "*") -> list[tuple[str, str]]:
    """Their files of pipeline tests: path below ``tests/pipelines``, and the name to import.

    The first of each folder come first, so that what is cut short has seen every folder.
    """
    folder = root / "tests" / "pipelines"
    found = sorted(folder.glob("*/test_*.py"))
    paths = spread([path.relative_to(folder) for path in found if path.match(pattern)])
    return [
        (str(path), ".".join(("tests", "pipelines", *path.with_suffix("").parts)))
        for path in paths
        if "onnx" not in path.name and "flax" not in path.name
    ]


def spread(paths: list[Path]) -> list[Path]:
    """The first of each folder, then the second of each, and so on."""
    rank = {
        path: sum(other.parent == path.parent for other in paths[:at])
        for at, path in enumerate(paths)
    }
    return sorted(paths, key=lambda path: rank[path])


def clients_in(file: str, module: str) -> Iterator[Client]:
    """Each way to make a pipeline once, though classes inherit it. Raises what importing raises."""
    loaded = importlib.import_module(module)
    seen: set[tuple[Any, ...]] = set()
    for kind in vars(loaded).values():
        if not isinstance(kind, type) or kind.__module__ != module or not _describes(kind):
            continue
        if any(word in kind.__name__ for word in SLOW):
            continue
        described: Any = kind
        made = (
            described.pipeline_class,
            described.get_dummy_components,
            described.get_dummy_inputs,
        )
        if made not in seen:
            seen.add(made)
            yield Client(file, kind)


def _describes(kind: Any) -> bool:
    methods = (getattr(kind, name, None) for name in ("get_dummy_components", "get_dummy_inputs"))
    owned = all(
        callable(method) and not method.__qualname__.startswith("BasePipelineTesterConfig")
        for method in methods
    )
    return owned and isinstance(getattr(kind, "pipeline_class", None), type)


def reachable(root: Path) -> None:
    """Their tests can be imported as the package ``tests``, and what is in ``.libs`` beside it."""
    sys.path.insert(0, str(root))
    sys.path.append(str(root / ".libs"))
    if importlib.util.find_spec("torchvision") is not None:
        _without_operators()


def _without_operators() -> None:
    """torchvision can be imported where its operators, made for another build, cannot be loaded."""
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", boxes)
