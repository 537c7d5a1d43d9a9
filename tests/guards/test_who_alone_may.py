"""What only one folder may do, found in the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.test_layers import FILES, ROOT

ALLOCATOR = {
    "empty_cache",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "mem_get_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
}
TENSORS = {"parameters", "named_parameters", "buffers", "named_buffers"}
STREAMS = {"Stream", "pin_memory", "cudart", "cudaHostRegister", "record_stream", "wait_stream"}


def calls(tree: ast.AST) -> Iterator[str]:
    """The last name of everything that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node.func.id


def caught(tree: ast.AST) -> Iterator[str]:
    """The last name of every exception that is caught, by `except` or by `suppress`."""
    for node in ast.walk(tree):
        kinds: list[ast.expr] = []
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and "suppress" in calls(ast.Expression(node)):
            kinds = node.args
        for kind in kinds:
            yield kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")


def inside(path: Path, *rooms: str) -> bool:
    """Whether the file lies in one of these folders (or is one of these files)."""
    return any(path.relative_to(ROOT).as_posix().startswith(room) for room in rooms)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_one_who_may_does(path: Path) -> None:
    """DESIGN §3, "who alone may"."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = set(calls(tree))
    if not inside(path, "card/"):
        assert not called & ALLOCATOR, "only card/ asks or trims the allocator"
    if not inside(path, "weigh/", "testing/"):
        assert not called & TENSORS, "only weigh/ enumerates a module's tensors"
    if not inside(path, "place/"):
        assert not called & STREAMS, "only place/ makes streams, events and pinned memory"
        made = {ast.unparse(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
        assert "torch.cuda.Event" not in made, "only place/ makes streams, events and pinned memory"
    if not inside(path, "cli/"):
        assert not called & {"print", "exit"}, "only cli/ prints and exits"
    if not inside(path, "run/ladder/", "card/virtual/"):
        assert "OutOfMemoryError" not in set(caught(tree)), "only run/ladder catches out-of-memory"
    if not inside(path, "settings.py"):
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not names & {"environ", "getenv"}, "only settings.py reads the environment"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_param_data_is_written_in_one_place(path: Path) -> None:
    """`.data =` belongs to place/; the virtual tensor defines what it means."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    written = [
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == "data"
    ]
    assert not written or inside(path, "place/")


def test_a_catch_is_found_in_every_form() -> None:
    """The guard itself: alone, among others, by name, and in a `suppress`."""
    for text in (
        "try: pass\nexcept torch.OutOfMemoryError: pass",
        "try: pass\nexcept (ValueError, OutOfMemoryError): pass",
        "with contextlib.suppress(torch.cuda.OutOfMemoryError): pass",
    ):
        assert "OutOfMemoryError" in set(caught(ast.parse(text)))
    assert "OutOfMemoryError" not in set(caught(ast.parse("raise torch.OutOfMemoryError()")))
