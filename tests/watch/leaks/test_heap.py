"""The walk: each object once, the shortest way, and no farther than it was told."""

from __future__ import annotations

import time
from typing import Any

from tightfit.watch.leaks.heap import Walk
from tightfit.watch.leaks.roots import Root, lasting, libraries, running


def walk(**limits: Any) -> Walk:
    """With a minute's time."""
    return Walk(time.thread_time() + 60, limits.get("depth", 100))


def root(*values: Any) -> Root:
    """Alive by itself."""
    return Root("root", ["name"] * len(values), list(values))


def test_the_shortest_way_is_the_one_that_is_told() -> None:
    """Each link refers to the next, and there is no way with fewer."""
    target: list[Any] = [[]]
    near = [[target]]
    start = root([[near]], near)
    path = walk().down([start], {id(target)})[id(target)]
    assert [id(each) for each in path] == [id(start), id(near), id(near[0]), id(target)]


def test_several_objects_are_found_in_one_walk() -> None:
    """Also one that lies on the way to another."""
    deep: list[Any] = [[]]
    middle = {"deep": deep}
    start = root([middle])
    paths = walk().down([start], {id(deep), id(middle)})
    assert [len(paths[id(each)]) for each in (middle, deep)] == [3, 4]


def test_loops_end() -> None:
    """An object is walked into once."""
    loop: list[Any] = []
    loop.append(loop)
    assert walk().down([root(loop)], {0}) == {}


def test_what_is_barred_is_not_walked_into_this_time() -> None:
    """And is the next."""
    target: list[Any] = [[]]
    wall = [target]
    both, start = walk(), root([wall])
    assert both.down([start], {id(target)}, barred={id(wall)}) == {}
    assert both.down([start, root(wall)], {id(target)})[id(target)][-2:] == [wall, target]


def test_a_limit_that_is_met_is_said() -> None:
    """Depth or time."""
    target: list[Any] = [[]]
    shallow = walk(depth=2)
    assert shallow.down([root([[[[target]]]])], {id(target)}) == {}
    assert shallow.cut == "chains of more than 2 links were not followed"
    late = Walk(time.thread_time() - 1, 100)
    late.down([root([[target]])], {id(target)})
    assert late.cut == "the time for the search ran out"


def test_libraries_are_those_that_were_installed_and_not_this_program() -> None:
    """PyTorch and Python's own are; these tests are not."""
    import sys

    found = libraries()
    assert {id(sys.modules[name]) for name in ("torch", "logging", "sys")} <= found
    assert id(sys.modules[__name__]) not in found


def test_every_module_lasts_and_frames_only_run() -> None:
    """The finder's own frames are none of them."""
    assert f"module {__name__}" in {each.text for each in lasting()}
    texts = [each.text for each in running()]
    assert sum("test_every_module_lasts_and_frames_only_run" in text for text in texts) == 1
    assert not any("running at roots.py" in text for text in texts)
