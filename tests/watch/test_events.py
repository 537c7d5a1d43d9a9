"""Every kind of event, as a line of a trace."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from tightfit.watch import events
from tightfit.watch.events import Event
from tightfit.watch.recorder import Recorder

KINDS = [
    each
    for each in vars(events).values()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
]
VALUES: dict[str, Any] = {"int": 5, "str": "a", "float": 0.5}


def made(kind: type[Event]) -> Event:
    """One with something in every field."""
    hints = get_type_hints(kind)
    fields = [name for name in kind.__dataclass_fields__ if name not in ("kind", "is_fine")]
    values = {}
    for name in fields:
        text = str(hints[name])
        if "Mapping" in text:
            values[name] = {"a": 1}
        elif "Sequence" in text:
            values[name] = ("a",)
        else:
            values[name] = 5 if "int" in text else 0.5 if "float" in text else "a"
    return kind(**values)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_an_event_is_a_line_that_json_knows(kind: type[Event]) -> None:
    """Its kind, then its figures; the same through a recorder, with the time first."""
    line = made(kind).as_line()
    assert line["event"] == kind.kind
    assert json.loads(json.dumps(line)) == line
    recorder = Recorder()
    recorder.tell(made(kind), at=1.5)
    assert recorder.events() == [{"t": 1.5, **line}]
    assert recorder.counts == {kind.kind: 1}


def test_no_two_kinds_have_one_name() -> None:
    """A reader goes by it."""
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
