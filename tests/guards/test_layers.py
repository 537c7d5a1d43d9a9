"""The arrows of the house: a folder imports only from its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tightfit

ROOT = Path(tightfit.__file__).parent
FLOORS = (
    ("errors",),
    ("units",),
    ("settings",),
    ("kept",),
    ("allocators",),
    ("card", "weigh", "plan"),
    ("watch",),
    ("place",),
    ("run",),
    ("report", "adapters", "media"),
    ("api",),
    ("cluster",),
    ("cli",),
)
RANK = {name: rank for rank, floor in enumerate(FLOORS) for name in floor}
WITHOUT_TORCH = ("errors", "units", "settings", "kept", "allocators", "plan", "report")
ONLY_IN = {
    "diffusers": "adapters",
    "transformers": "adapters",
    "huggingface_hub": "adapters",
    "PIL": "media",
    "av": "media",
    "ray": "cluster",
    "typer": "cli",
    "pynvml": "card",
    "jinja2": "report",
}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    """The folder or file right below the package."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    """Every module that the file imports, wherever the statement stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "tightfit":
                found += [f"tightfit.{alias.name}" for alias in node.names]
            else:
                found.append(node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_folder_imports_only_from_its_left(path: Path) -> None:
    """`card`, `weigh` and `plan` do not even import one another; nothing imports `testing`."""
    room = room_of(path)
    for name in imports_of(path):
        if not name.startswith("tightfit."):
            continue
        other = name.split(".")[1]
        if other == room or room in ("testing", "__init__", "__main__") or other.startswith("_"):
            continue
        assert other != "testing", f"{path.name} imports testing"
        assert RANK[other] < RANK[room], f"{room} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_libraries_stay_in_their_rooms(path: Path) -> None:
    """Each foreign library has one folder that speaks to it."""
    room = room_of(path)
    for name in imports_of(path):
        top = name.partition(".")[0]
        home = ONLY_IN.get(top)
        assert home in (None, room), f"{room} imports {top}, which belongs to {home}"
        assert not (top == "torch" and room in WITHOUT_TORCH), f"{room} imports torch"


def test_every_folder_is_on_a_floor() -> None:
    """A new folder has to be given its place."""
    rooms = {room_of(path) for path in FILES} - {"testing", "__init__", "__main__"}
    assert rooms <= set(RANK)
