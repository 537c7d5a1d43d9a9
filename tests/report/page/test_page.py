"""The page of hand-made traces: its values, its size, and what it does with the strange."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.report.page import records
from tightfit.report.page import page
from tightfit.report.page.story import tell
from tightfit.report.trace_file import Trace
from tightfit.units import format_bytes

HOSTILE = '"><script>window.pwned=1</script><img src=x onerror=alert(1)>\u2028{{ 7*7 }}'


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep a script."""
        if self.lasttag == "script" and data.strip():
            self.scripts.append(data)

    def having(self, attribute: str) -> list[str]:
        """The values of an attribute."""
        return [attrs[attribute] or "" for _, attrs in self.found if attribute in attrs]

    def figure(self, name: str) -> int:
        """A headline figure in bytes."""
        found = [attrs["data-bytes"] for _, attrs in self.found if attrs.get("data-figure") == name]
        assert len(found) == 1
        return int(found[0] or "")


def data_of(html: str) -> dict[str, Any]:
    """What the page's script is given."""
    return json.loads(Tags(html).scripts[0])


def test_headline_figures_are_those_of_the_trace() -> None:
    """Peaks, budget, baseline and what was held after, to the byte."""
    tags = Tags(page(records.of(records.seed_job())))
    assert tags.figure("peak") == records.FAILED_PEAK
    assert tags.figure("peak-reserved") == 3_052 * records.MIB
    assert tags.figure("budget") == records.BUDGET
    assert tags.figure("baseline") == records.FLOOR
    assert tags.figure("after") == 0


def test_the_failed_try_is_there_with_its_peak_and_what_was_refused() -> None:
    """As a band, as a mark in the figure, and as a row of the table."""
    html = page(records.of(records.seed_job()))
    tags = Tags(html)
    assert tags.having("data-failed-peak") == [str(records.FAILED_PEAK)]
    assert tags.having("data-refused") == [str(records.REFUSED)]
    assert "✗ encode: whole" in html
    assert f"✗ {format_bytes(records.REFUSED)} refused" in html
    assert "✗ out of memory" in html


@pytest.mark.parametrize("held", [records.FLOOR, 2_407 * records.MIB])
def test_the_floor_after_the_failed_try_is_what_stayed(held: int) -> None:
    """Whether all was let go, as here, or not, as where one retries inside the handler."""
    html = page(records.of(records.seed_job(held_after_oom=held)))
    floors = re.findall(r'class="floor" data-a="([\d.]+)" data-b="[\d.]+" data-bytes="(\d+)"', html)
    after = {int(size) for start, size in floors if float(start) >= 2.5}
    assert after == {held}


def test_a_floor_above_the_baseline_is_the_advice() -> None:
    """What the first seed's picture shows is said in words."""
    html = page(records.of(records.seed_job(held_after_oom=2_407 * records.MIB)))
    assert f"{format_bytes(1_306 * records.MIB)} were still held" in html


def test_the_curve_in_the_page_has_every_sample() -> None:
    """Times in microseconds and bytes, for a short trace."""
    events = records.seed_job()
    packed = data_of(page(records.of(events)))["curves"]["allocated"]
    times = [sum(packed["t"][: n + 1]) / 1e6 for n in range(len(packed["t"]))]
    samples = [(each["t"], each["allocated_bytes"]) for each in events if each["event"] == "memory"]
    expected_times, sizes = zip(*sorted(samples), strict=True)
    assert times == pytest.approx(expected_times)
    assert packed["lo"] == list(sizes)
    assert packed["hi"] is None


def test_without_data_it_is_below_a_megabyte() -> None:
    """Style, script and words."""
    html = page(Trace({"tightfit_trace": 2}, ()))
    assert len(html.encode()) < 100_000
    assert "The trace has no events." in html


def test_an_hour_of_events_is_below_five_megabytes_and_keeps_its_peak() -> None:
    """A hundred thousand samples, tiles, placements, copies; one sample is far above the others."""
    step = 3600 / 100_000
    events = [
        records.memory(n * step, (1 + n % 7) * records.GIB // 4 + n, 3 * records.GIB)
        for n in range(100_000)
    ]
    events[54_321] = records.memory(54_321 * step, 7 * records.GIB + 1, 8 * records.GIB)
    for n in range(3_000):
        at = n * 1.2
        events.append(records.event(at, "tile", rung="tiles 64x64", done=n + 1, total=3_000))
        events.append(
            records.event(at, "placed", n=n, block=f"blocks.{n % 300}", network="a", bytes=n)
        )
        events.append(records.event(at, "evicted", block=f"blocks.{n % 300}", network="a", bytes=n))
        events.append(records.event(at, "attempt", stage="denoise", rung="whole", held_bytes=n))
        events.append(records.event(at + 0.1, "done", stage="denoise", rung="whole"))
        events.append(records.event(at, "allocate", bytes=n, address=n, by=f"code:{n % 40} call"))
    streamed = [each for each in records.streamed_job() if each["event"] == "streamed_step"]
    events += [{**streamed[n % 12], "t": n * 1.5} for n in range(2_000)]
    for n in range(2_000):
        events.append(records.event(n * 1.5, "step", done=n + 1, total=2_000))
        events.append(records.event(n * 1.5, "others", bytes=n))
    trace = records.of(events, header={"report": records.report()}, dropped=12)
    html = page(trace)
    assert len(html.encode()) < 5_000_000
    allocated = data_of(html)["curves"]["allocated"]
    assert max(allocated["hi"]) == 7 * records.GIB + 1
    assert "12 events no longer fitted" in html


def test_no_part_of_it_comes_from_elsewhere() -> None:
    """No address, no import; the policy forbids every request, and every script but its own."""
    html = page(records.of([*records.seed_job(), *records.streamed_job()]))
    tags = Tags(html)
    assert not [each for each in tags.having("src") if each]
    assert all(each.startswith(("#", "data:")) for each in tags.having("href"))
    assert "url(" not in html
    assert "@import" not in html
    policy = next(value for value in tags.having("content") if "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def hostile_events() -> list[dict[str, Any]]:
    """Every text of every event is an attack."""

    def poison(value: Any) -> Any:
        if isinstance(value, str):
            return HOSTILE
        if isinstance(value, dict):
            return {key: poison(each) for key, each in value.items()}
        return [poison(each) for each in value] if isinstance(value, list) else value

    told = [*records.seed_job(), *records.streamed_job()]
    return [
        {key: each if key in ("event", "state") else poison(each) for key, each in event.items()}
        for event in told
    ]


def test_hostile_names_are_text_wherever_they_stand() -> None:
    """No tag, no attribute and no script comes from a trace."""
    html = page(records.of(hostile_events()))
    tags = Tags(html)
    assert "<script>window" not in html
    assert "<img" not in html
    assert not [name for _, attrs in tags.found for name in attrs if name.startswith("on")]
    assert sum(tag == "script" for tag, _ in tags.found) == 2
    assert "49" not in re.findall(r"\{\{.*?\}\}", html)
    assert HOSTILE in json.dumps(data_of(html), ensure_ascii=False).replace('\\"', '"')


def test_a_trace_that_is_cut_off_says_so_and_is_drawn() -> None:
    """Whose last try has no end."""
    events = [each for each in records.seed_job() if each["t"] < 1.5]
    html = page(records.of(events, truncated=True))
    assert "The trace is cut off" in html
    assert "The trace ends before the job does." in html
    assert "… encode: whole" in html


def test_what_is_not_in_the_trace_is_named() -> None:
    """Instead of empty figures."""
    html = page(records.of([records.memory(0.0, 1), records.memory(1.0, 2)]))
    assert "Not in this trace, and so not drawn" in html
    assert "residency" in html
    assert 'id="residency"' not in html


@pytest.mark.parametrize(
    "strange",
    [
        {"t": 1.0, "event": "from the future", "bytes": {"a": []}},
        {"t": "soon", "event": "memory", "allocated_bytes": "many"},
        {"t": 1.0, "event": "memory", "allocated_bytes": float("nan"), "reserved_bytes": None},
        {"t": float("inf"), "event": "memory", "allocated_bytes": 5, "reserved_bytes": 5},
        {"t": 1.0, "event": "placed"},
        {"t": 1.0, "event": "rests"},
        {"t": 1.0, "event": "streamed_step", "blocks": [None, {"name": None}, 3]},
        {"t": 1.0, "event": "streamed_step", "seconds": 0.0, "limit_seconds": 0.0},
        {"t": 1.0, "event": "tile", "rung": "tiles 0x0", "done": 1, "total": 10**15},
        {"t": 1.0, "event": "tile", "rung": "tiles 64x64", "done": None, "total": -3},
        {"t": 1.0, "event": "oom", "text": "Tried to allocate 99999999999999999999.00 GiB"},
        {"t": 1.0, "event": "attempt"},
        {"t": 1.0, "event": "stage"},
        {"t": 1.0, "event": "leak", "chain": 5, "bytes": "x"},
        {"t": 1.0, "event": "report", "report": {"ledger": [], "attempts": "none", "input": 5}},
        {"t": 1.0, "event": "plan", "ledger": {"activations": "much"}},
        {"t": 1.0, "event": "allocate", "address": "0x"},
        {"t": 1.0, "event": "others", "bytes": 0},
        {"t": -5.0, "event": "memory", "allocated_bytes": 0, "reserved_bytes": 0},
    ],
    ids=lambda event: str(event["event"]),
)
def test_strange_events_are_never_fatal(strange: dict[str, Any]) -> None:
    """Unknown kinds are passed over; a figure that is none is unknown."""
    trace = Trace({"tightfit_trace": 2}, (*records.seed_job()[:20], strange))
    assert page(trace).endswith("</html>")
    assert page(Trace({"tightfit_trace": 2}, (strange,))).endswith("</html>")


def test_a_log_of_a_job_that_memory_ended_is_shown_from_its_header() -> None:
    """Its report stands beside its events."""
    events = [each for each in records.seed_job() if each["t"] < 2.4]
    html = page(records.of(events, header={"tightfit_oom": 1, "report": records.report()}))
    assert "Memory ended this job" in html
    assert Tags(html).figure("budget") == records.BUDGET


def test_what_a_trace_cannot_show_is_said() -> None:
    """In the words of the recorder."""
    said = "The allocator cudaMallocAsync has no history."
    html = page(records.of([*records.seed_job(), records.event(0.0, "unseen", text=said)]))
    assert said in html


def test_the_whole_story_of_the_seed_has_two_stages_and_three_tries() -> None:
    """Loading counts as a try."""
    story = tell(records.of(records.seed_job()))
    assert [band.name for band in story.stages] == ["load", "encode"]
    assert [band.outcome for band in story.tries] == ["ok", "oom", "ok"]
