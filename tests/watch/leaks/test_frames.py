"""Reading the locals of frames leaves nothing behind in them."""

from __future__ import annotations

import sys
import threading
import weakref
from types import FrameType
from typing import Any

from tests.watch.leaks.planted import big
from tightfit.card.virtual.card import VirtualCard
from tightfit.watch.leaks.frames import finished_thread, is_ours, named_locals, place_of


def test_a_local_that_is_dropped_after_the_look_is_gone(card: VirtualCard) -> None:
    """The frame keeps no copy of what it had, though Python's own way makes one."""
    kept = big(card)
    weak = weakref.ref(kept)
    assert any(value is kept for _, value in named_locals(sys._getframe()))
    del kept
    assert weak() is None
    assert card.read().allocated == 0


def test_locals_that_somebody_asked_for_stay_as_they_are() -> None:
    """The dict that `locals()` gave is the asker's."""
    kept = 7
    mine = locals()
    pairs = dict(named_locals(sys._getframe()))
    assert pairs["kept"] == kept
    assert mine["kept"] == 7


def test_the_names_of_a_module_are_never_emptied() -> None:
    """A frame of module level has the module's own table."""
    table: dict[str, Any] = {"sys": sys, "found": []}
    exec("frame = sys._getframe()\nfound.append(frame)", table)
    assert "frame" in dict(named_locals(table["found"][0]))
    assert table["frame"] is table["found"][0]


def test_a_place_is_a_function_with_file_and_line() -> None:
    """As a traceback says it, in short."""
    first = sys._getframe().f_code.co_firstlineno
    place = place_of(sys._getframe())
    assert place == f"test_a_place_is_a_function_with_file_and_line at test_frames.py:{first + 3}"


def test_a_frame_knows_its_thread_once_that_has_ended() -> None:
    """While it runs it is no leak of a thread; a frame of this thread never is."""
    frames: list[FrameType] = []
    seen: list[str | None] = []
    ready, go = threading.Event(), threading.Event()

    def work() -> None:
        frames.append(sys._getframe())
        ready.set()
        go.wait()

    worker = threading.Thread(target=work, name="loader")
    worker.start()
    ready.wait()
    seen.append(finished_thread(frames[0]))
    go.set()
    worker.join()
    seen.append(finished_thread(frames[0]))
    assert seen == [None, "loader"]
    assert finished_thread(sys._getframe()) is None


def test_only_the_finder_is_ours() -> None:
    """What runs here is a user's."""
    assert is_ours(named_locals.__code__)
    assert not is_ours(big.__code__)
    assert not is_ours(VirtualCard.read.__code__)
