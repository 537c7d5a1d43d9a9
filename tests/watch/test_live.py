"""Events for whoever looks on from another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tightfit.settings import Settings, environ_with_events
from tightfit.watch import Recorder
from tightfit.watch.events import Allocate
from tightfit.watch.live import Live, live


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the environment names."""
    path = tmp_path / "events.jsonl"
    path.touch()
    monkeypatch.setenv("TIGHTFIT_EVENTS", str(path))
    live.cache_clear()
    yield path
    live.cache_clear()


def test_events_are_passed_on_as_they_happen(events: Path) -> None:
    """Single moves are not: there are too many; nor is every look at memory."""
    recorder = Recorder(fine=True)
    recorder.event("stage", stage="denoise")
    recorder.tell(Allocate(5))
    for at in range(100):
        recorder.memory(1 << at, 1 << at)
    kinds = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert kinds[:2] == ["stage", "memory"]
    assert len(kinds) < 50
    assert recorder.counts["memory"] == 100


def test_a_job_goes_on_where_nobody_looks_on_any_more(tmp_path: Path) -> None:
    """The file is gone, and no other is made."""
    path = tmp_path / "none.jsonl"
    Live(path).tell("stage", {"event": "stage"})
    assert not path.exists()


def test_without_the_variable_nothing_is_passed_on(tmp_path: Path) -> None:
    """And a child that is given it has all else as it was."""
    assert Settings.from_environ({}).events is None
    path = tmp_path / "e.jsonl"
    assert Settings.from_environ(environ_with_events(path)).events == path
