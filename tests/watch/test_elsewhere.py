"""What happens on another card than the one of a trace."""

from __future__ import annotations

from tests.cases.common import virtual
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.elsewhere import Elsewhere
from tightfit.watch.events import Others
from tightfit.watch.teller import Teller


def test_events_bear_the_name_of_their_card_and_its_memory_is_not_told() -> None:
    """The curves of a trace, its peaks and its header are of one card alone."""
    one, two = virtual("64MiB"), virtual("32MiB")
    recorder = Recorder()
    recorder.on(one)
    recorder.memory(5 * MIB, 6 * MIB)
    other = Elsewhere(recorder, two)
    teller = Teller("text_encoder", two, other)
    teller.placed("block", MIB, "resident")
    teller.moved(0, MIB, "it was fitted", 0.5)
    teller.rests(MIB)
    other.tell(Others(3))
    other.peaks(30 * MIB, 30 * MIB)
    other.event("oom", stage="forward", rung="as planned", text="full")
    kinds = [event["event"] for event in recorder.events()]
    assert kinds == ["memory", "moved", "rests", "oom"]
    assert recorder.events()[-1]["card"] == "virtual:32MiB"
    assert recorder.peak_allocated == 5 * MIB
    assert recorder.about["card"]["name"] == "virtual:64MiB"
    assert other.whole is recorder.whole is recorder
    assert not other.fine
    assert 0 <= other.now() <= recorder.now()
