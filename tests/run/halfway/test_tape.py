"""What is kept of a loop, and what of it is gone through again without the work."""

from __future__ import annotations

import pytest
import torch

from tightfit.run.halfway.tape import Tape
from tightfit.run.halfway.trees import Packed, pack


def packed(value: float) -> Packed:
    return pack(torch.full((2,), value), "value", {})


def loop(*, steps: int) -> Tape:
    """An encoder, then a network and a scheduler in turn."""
    tape = Tape(packed(0.0))
    tape.called("encoder", None, keeps=False)
    for step in range(steps):
        tape.called("network", packed(step), keeps=True)
        tape.stepped("0", packed(step).form, packed(10.0 + step), new_lap=step == 0)
    return tape


def test_only_the_first_values_and_the_last_end_are_kept() -> None:
    """A file does not grow with the steps."""
    state, tensors = loop(steps=4).as_state()
    assert sorted(each.tolist()[0] for each in tensors) == [0.0, 0.0, 13.0]
    assert len(state["events"]) == 9


def test_an_encoder_is_called_again_and_a_network_is_not() -> None:
    """Zeros are as good where nobody uses them; what is used later is there."""
    tape = loop(steps=2)
    encoder, first, _, second, _ = tape.events
    assert (encoder.form, encoder.kept) == (None, None)
    assert first.kept is not None
    assert second.form is not None
    assert second.kept is None


def test_what_came_after_the_last_step_is_not_on_it() -> None:
    """It will be done again."""
    tape = loop(steps=2)
    tape.called("network", packed(9.0), keeps=True)
    state, _ = tape.as_state()
    assert state["events"][-1][0] == "step"


def test_what_is_computed_before_a_later_lap_is_computed_again() -> None:
    """All of that lap may use it."""
    tape = loop(steps=2)
    tape.called("upsampler", packed(5.0), keeps=True)
    tape.stepped("0", packed(1.0).form, packed(20.0), new_lap=True)
    assert tape.events[-2].form is None
    assert [e.kept is not None for e in tape.events if e.kind == "step"] == [False, True, True]


def test_it_is_the_same_after_a_file() -> None:
    """And goes on from there."""
    tape = Tape.of_state(*loop(steps=2).as_state())
    assert (tape.steps, tape.is_behind) == (2, True)
    for kind, name in (("call", "encoder"), *[("call", "network"), ("step", "0")] * 2):
        event = tape.next(kind, name)  # type: ignore[arg-type]
    assert event.kept is not None
    assert not tape.is_behind
    tape.reached(event)
    tape.stepped("0", packed(1.0).form, packed(30.0), new_lap=False)
    assert event.kept is None
    assert tape.steps == 3


def test_another_order_is_refused() -> None:
    """It is another call."""
    tape = Tape.of_state(*loop(steps=1).as_state())
    with pytest.raises(ValueError, match="a call of `network` where a call of `encoder` was"):
        tape.next("call", "network")


def test_nothing_can_be_gone_on_with_before_the_first_step() -> None:
    """Such a tape is no tape."""
    with pytest.raises(ValueError, match="no step"):
        Tape.of_state(*loop(steps=0).as_state())
