"""What a loop did, event by event, so that it can be gone through again without the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tightfit.run.halfway.trees import Json, Packed, on_host
from tightfit.units import MIB

Kind = Literal["call", "step"]
_MOST_KEPT = 256 * MIB


@dataclass(eq=False)
class Event:
    """A call of a network, or a step of a scheduler.

    Attributes:
        kind: which of the two.
        name: of the network, or the number of the scheduler.
        form: of what it gave; None for a call that has to be made again.
        kept: of a call: what it gave. Of a step that was its scheduler's last so far: all there is
            to go on from there.
    """

    kind: Kind
    name: str
    form: Json | None
    kept: Packed | None = None


@dataclass(eq=False)
class Tape:
    """The events so far, and how far they were gone through again.

    A **lap** is what a scheduler does between two settings of its times. What networks give between
    two steps of a lap is used up by the second of them, so zeros are as good when that step is not
    made again. What they give before the first step of a lap may be used by all that follow: there
    the values themselves are kept, or the calls are made again.

    Attributes:
        events: in order.
        at: how many were gone through again, or are new.
        goal: how many there were when the job stopped.
        given: forms of what the first step was given.
        begins: where the generators were before the first event.
    """

    begins: Packed
    given: Json = None
    events: list[Event] = field(default_factory=list)
    at: int = 0
    goal: int = 0
    _last: dict[str, Event] = field(default_factory=dict)
    _kept: int = 0

    @property
    def is_behind(self) -> bool:
        """Whether what comes next was done before."""
        return self.at < self.goal

    @property
    def steps(self) -> int:
        """How many there are on it."""
        return sum(event.kind == "step" for event in self.events)

    def next(self, kind: Kind, name: str) -> Event:
        """What was done where this is asked for again. Raises `ValueError` where that differs."""
        event = self.events[self.at]
        if (event.kind, event.name) != (kind, name):
            raise ValueError(
                f"there is a {kind} of `{name}` where a {event.kind} of `{event.name}` was"
            )
        self.at += 1
        return event

    def called(self, name: str, packed: Packed | None, *, keeps: bool) -> None:
        """`name` gave what is `packed`; None for what cannot be.

        Before the first step only values of networks with `keeps` will not have to be made again.
        """
        event = Event("call", name, None if packed is None else packed.form)
        if not any(self._windows()):
            size = 0 if packed is None else sum(each.nbytes for each in packed.tensors)
            if packed is None or not keeps or self._kept + size > _MOST_KEPT:
                event.form = None
            else:
                event.kept = packed
                self._kept += size
        self._add(event)

    def stepped(self, name: str, output: Json, end: Packed, *, new_lap: bool) -> None:
        """Scheduler `name` made a step, gave that `output`, and could go on from that `end`."""
        if new_lap and self.steps:
            for event in self._since_last_step():
                event.form = None
        before = None if new_lap else self._last.get(name)
        event = Event("step", name, output, end)
        self._add(event)
        self._last[name] = event
        if before is not None:
            before.kept = None

    def reached(self, event: Event) -> None:
        """A step that was its scheduler's last has been gone through again."""
        self._last[event.name] = event

    def to_host(self) -> None:
        """What is kept lies on the host from here on."""
        for event in self.events:
            if event.kept is not None:
                event.kept = event.kept.changed(_to_host)

    def as_state(self) -> tuple[Json, list[torch.Tensor]]:
        """All up to the last step, as JSON, and the tensors that it is about."""
        tensors: list[torch.Tensor] = []

        def of(packed: Packed | None) -> Json:
            if packed is None:
                return None
            tensors.extend(packed.tensors)
            return [len(tensors) - len(packed.tensors), len(packed.tensors), packed.form]

        done = len(self.events) - len(self._since_last_step())
        events = [[e.kind, e.name, e.form, of(e.kept)] for e in self.events[:done]]
        return {"begins": of(self.begins), "given": self.given, "events": events}, tensors

    @classmethod
    def of_state(cls, state: Json, tensors: Sequence[torch.Tensor]) -> Tape:
        """It again, at its beginning; raises `ValueError` or a relative for what makes no sense."""

        def of(found: Any) -> Packed | None:
            if found is None:
                return None
            first, count, form = found
            return Packed(form, tuple(tensors[first : first + count]))

        begins = of(state["begins"])
        events = [Event(kind, name, form, of(kept)) for kind, name, form, kept in state["events"]]
        if begins is None or not events or events[-1].kept is None:
            raise ValueError("there is no step on it")
        return cls(begins, state["given"], events, goal=len(events))

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self.at = self.goal = len(self.events)

    def _windows(self) -> Iterator[bool]:
        return (event.kind == "step" for event in self.events)

    def _since_last_step(self) -> list[Event]:
        found: list[Event] = []
        for event in reversed(self.events):
            if event.kind == "step":
                break
            found.append(event)
        return found[::-1]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type == "cpu" else on_host(tensor)
