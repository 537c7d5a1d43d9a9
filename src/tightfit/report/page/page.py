"""One HTML file that shows a trace: everything in it, nothing asked of anybody."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tightfit.report.page.advice import advice
from tightfit.report.page.attempts import MOST_ROWS
from tightfit.report.page.axes import byte_ticks, time_ticks
from tightfit.report.page.bands import calls, kept, returns
from tightfit.report.page.curves import Curve, area, outline
from tightfit.report.page.fields import at, mapping, size, span, text
from tightfit.report.page.leaks import MOST_LEAKS
from tightfit.report.page.marks import marks
from tightfit.report.page.story import Story, tell
from tightfit.report.trace_file import Trace

_COLUMNS = 1000
_MOST_FLOORS = 150
_MOST_NAMES = 4


def page(trace: Trace) -> str:
    """The page of a trace, as the text of an HTML file that works without a network.

    It holds its own style, script and data; its content policy forbids every request, and every
    script but its own. Names and texts of the trace are escaped. Without data it takes less than
    0.1 MB; long traces are thinned to the least and the most of each stretch, so that the peak is
    exact.
    """
    story = tell(trace)
    script = _part("page.js")
    return (
        environment()
        .get_template("page.html.jinja")
        .render(
            story=story,
            advice=advice(story),
            title=_title(story),
            outcome=_outcome(story),
            chart=_chart(story),
            missing=_missing(story),
            data=_data(story),
            style=Markup(_part("page.css")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            most_leaks=MOST_LEAKS,
            most_rows=MOST_ROWS,
        )
    )


@cache
def environment() -> Environment:
    """Where the templates are; what they are given is escaped."""
    made = Environment(
        loader=PackageLoader("tightfit.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(size=size, span=span, share=_share)
    return made


def _part(name: str) -> str:
    return files("tightfit.report.page").joinpath("templates", name).read_text(encoding="utf-8")


def _share(part: float | None, whole: float | None) -> float:
    """Per cent, between 0 and 100; 0 where one is not known."""
    if not part or not whole:
        return 0.0
    return round(max(0.0, min(100.0, 100 * part / whole)), 3)


def _title(story: Story) -> str:
    """``encode · AutoencoderKLWan · virtual:59MiB``, as far as it is known."""
    report = story.report
    model, card = mapping(report, "model"), mapping(report, "card")
    plans = dict.fromkeys(text(event, "name") for event in story.trace.of("plan"))
    planned = ", ".join(list(plans)[:_MOST_NAMES])
    name = text(model, "name", "spec") or planned
    words = (text(report, "command"), name, text(card, "name"))
    return " · ".join(word for word in words if word) or "a trace"


def _outcome(story: Story) -> tuple[str, str]:
    """A word (``ok``, ``oom``, ``failed``, ``open``) and a sentence."""
    error = text(story.report, "error")
    last = story.tries[-1] if story.tries else None
    if last is not None and last.failed:
        return "oom", error or "Memory ended this job."
    if error:
        return "failed", error
    if not story.trace.events:
        return "open", "The trace has no events."
    if story.trace.truncated or (last is not None and last.outcome == "open"):
        return "open", "The trace ends before the job does."
    if story.failed:
        many = "one try" if len(story.failed) == 1 else f"{len(story.failed)} tries"
        return "ok", f"Done, after {many} that ran out of memory."
    if story.after is not None or text(story.report, "command"):
        return "ok", "Done."
    return "ok", "No failure is in this trace."


def _missing(story: Story) -> list[str]:
    """Figures that are not on the page, and what the trace would have to say."""
    known = {
        "memory over time": story.allocated,
        "the residency map (which block was where)": story.residency,
        "copies beside compute (needs a card with a clock, and the fine level)": story.lanes,
        "the ledger": story.books,
        "tiles over the picture": story.picture,
    }
    return [name for name, figure in known.items() if figure is None]


def _chart(story: Story) -> dict[str, Any]:
    """Paths, ticks and marks of the first figure, as per cent of its sides."""
    top, start, stop = story.top, story.start, story.stop
    across = stop - start
    others_top = max(1, story.others.peak) if story.others else 1

    def x(time: float) -> float:
        return round(100 * (time - start) / across, 3)

    def y(amount: int) -> float:
        return round(min(100.0, 100 * amount / top), 3)

    def path(curve: Curve | None, most: int, *, low: bool = False) -> str:
        if curve is None:
            return ""
        return outline(curve.columns(start, stop, _COLUMNS), most, low=low)

    high = path(story.allocated, top)
    return {
        "x": x,
        "y": y,
        "high": high,
        "high_area": area(high),
        "low_area": area(path(story.allocated, top, low=True)),
        "reserved": path(story.reserved, top),
        "others": area(path(story.others, others_top)),
        "others_top": others_top,
        "floors": _floors(story),
        "kept": kept(story.tries),
        "returns": returns(story.trace.events),
        "bytes": byte_ticks(top),
        "seconds": time_ticks(start, stop),
    }


def _floors(story: Story) -> list[tuple[float, float, int]]:
    """What stayed: the least of each call of the model, or of each try where calls are many; where
    the trace tells of no tries, of each step."""
    memory = story.allocated
    if memory is None:
        return []
    cuts = ("tile",) if story.tries else ("tile", "step")
    tiles = sorted(at(event) for event in story.trace.events if event["event"] in cuts)
    told = story.tries or story.stages
    stretches = [each for band in told for each in calls(tiles, band)]
    if len(stretches) > _MOST_FLOORS:
        stretches = [(band.start, band.stop) for band in told]
    seen = [(start, stop, memory.between(start, stop)) for start, stop in stretches]
    return [(start, stop, both[0]) for start, stop, both in seen if both is not None]


def _data(story: Story) -> dict[str, Any]:
    """What the script needs, as JSON values."""
    return {
        "start": story.start,
        "stop": story.stop,
        "top": story.top,
        "budget": story.budget,
        "curves": {
            "allocated": story.allocated and story.allocated.as_dict(),
            "reserved": story.reserved and story.reserved.as_dict(),
            "others": story.others and story.others.as_dict(),
        },
        "stages": [[band.start, band.stop, band.name] for band in story.stages],
        "tries": [[band.start, band.stop, band.name, band.outcome] for band in story.tries],
        "marks": marks(story.trace.events),
        "looks": [[each.time, each.held, each.total] for each in story.looks],
        "holders": {"names": story.holders.names, "changes": story.holders.changes},
    }
