"""A plan for people, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.models import card, flux_denoise, flux_pipeline, gib
from tests.plan.strategies import demands, jobs, supplies
from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.describe import at_least
from tightfit.plan.explain import HEIGHT, WIDTH, seconds
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.plan import make
from tightfit.plan.streaming.residency import MODES
from tightfit.plan.supply import Host, Supply
from tightfit.units import GIB, MIB, parse_bytes


@given(jobs(), supplies(), st.sampled_from(MODES))
def test_an_explanation_is_one_screenful(job, supply: Supply, mode) -> None:
    """Forty lines of a hundred columns, whatever was planned, and no blank at the end."""
    text = make(job, supply, mode=mode).explain()
    lines = text.splitlines()
    assert len(lines) <= HEIGHT
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in lines)


@given(st.lists(demands(), min_size=4, max_size=9), supplies())
def test_many_stages_are_one_screenful_too(many: list[Demand], supply: Supply) -> None:
    """In fewer words; those that need least are counted, not shown; a shortage is never cut off."""
    job = [replace(demand, stage=f"a stage of number {at}") for at, demand in enumerate(many)]
    plan = make(job, supply)
    lines = plan.explain().splitlines()
    assert len(lines) <= HEIGHT
    assert all(len(line) <= WIDTH for line in lines)
    if not plan.fits:
        assert any(line.startswith("Try: ") for line in lines)


def test_an_explanation_has_every_line_of_the_ledger_with_its_source() -> None:
    """And the sums, what binds, and what would change the answer."""
    supply = replace(
        card(8 * GIB, compute=180e12, host=Host(64 * GIB, 60 * GIB)),
        context=Figure(gib(0.4), "table"),
        held_by_others=Figure(gib(0.7), "measured"),
        reserve=gib(0.5),
        link=Rate(25e9, "measured"),
    )
    demand = replace(flux_denoise(flops=60e12), slack=Figure(gib(0.2)), inputs=4 * MIB)
    text = make([demand], supply).explain()
    spaced = " ".join(text.split())
    for words in (
        "virtual:8.0GiB: 8.0 GiB in all, budget 8.0 GiB, 6.4 GiB free for this job",
        "input 4.0 MiB predicted",
        "activations 471.0 MiB predicted",
        "slack 204.8 MiB predicted",
        "context 409.6 MiB table",
        "held by others 716.8 MiB measured",
        "reserve 512.0 MiB measured",
        "sum for the budget 6.3 GiB",
        "sum for the card 7.9 GiB",
        "copied a step at 25.0 GB/s (measured)",
        "the link binds",
        "streaming stops costing time",
        "keeps all weights resident",
        "Host memory: weights take 22.2 GiB of 60.0 GiB, pinned",
    ):
        assert words in spaced


def test_stages_stand_side_by_side() -> None:
    """Each with its ledger, and with a sentence of its own."""
    text = make(flux_pipeline(), card(8 * GIB, compute=180e12)).explain()
    head = next(line for line in text.splitlines() if "encode text" in line)
    assert head.split() == ["encode", "text", "denoise", "decode"]
    assert "\ndenoise: " in text
    assert "\ndecode: whole; all 160.0 MiB of weights stay." in text


def test_a_plan_that_does_not_fit_explains_why() -> None:
    """The shortage stands below the ledger of the least that it would take."""
    text = make(flux_pipeline(), card(gib(0.5))).explain()
    assert "does not fit." in text
    assert "denoise: needs 579.1 MiB at least, 67.1 MiB more than there is." in text
    assert "Not enough memory to decode 1024x1024." in text


def test_tiles_are_said_to_be_inexact_with_what_the_whole_needs() -> None:
    """The user decides whether that is worth a larger card."""
    text = make(flux_pipeline()[-1:], card(gib(0.7))).explain()
    assert "tiles of 512, not exact (whole needs 2.0 GiB at least)" in text


@given(jobs(), supplies(), st.sampled_from(MODES))
def test_json_holds_plain_values_with_whole_bytes(job, supply: Supply, mode) -> None:
    """Every figure in bytes is an integer or null; it survives a round trip."""
    values = make(job, supply, mode=mode).as_dict()
    assert json.loads(json.dumps(values)) == values

    def look(value: object, name: str = "") -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                look(item, key)
        elif isinstance(value, list):
            for item in value:
                look(item)
        elif name == "bytes" or name.endswith("_bytes"):
            assert value is None or type(value) is int

    look(values)


def test_json_has_these_keys_and_no_others() -> None:
    """A key comes or goes on purpose."""
    plan = make([flux_denoise()], card(6 * GIB, host=Host(64 * GIB, 60 * GIB)))
    values = plan.as_dict()
    assert list(values) == [
        "version",
        "fits",
        "mode",
        "card",
        "rates",
        "annexe",
        "together",
        "exact",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "stages",
        "host",
        "not_predicted",
        "shortage",
    ]
    (stage,) = values["stages"]
    assert set(stage["ledger"]) == {
        "held",
        "weights_resident",
        "weights_idle",
        "ring",
        "conversion",
        "scratch",
        "input",
        "activations",
        "library_workspaces",
        "slack",
        "context",
        "held_by_others",
        "reserve",
    }
    assert set(values["host"]["ledger"]) == {
        "host_masters",
        "host_pinned_asked",
        "host_pinned_real",
        "host_activations",
    }


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (96, "96 B"),
        (6 * GIB, "6.0 GiB"),
        (6 * GIB + 1, "6.1 GiB"),
        (100 * MIB - 1, "100.0 MiB"),
        (1023 * MIB + MIB - 1, "1.0 GiB"),
    ],
)
def test_what_to_ask_for_is_rounded_up(size: int, said: str) -> None:
    """A user who asks for as much gets enough."""
    assert at_least(size) == said


@given(st.integers(1, 2**45))
def test_what_to_ask_for_is_enough(size: int) -> None:
    """Whatever the size, give or take the byte that a decimal cannot say."""
    assert parse_bytes(at_least(size)) >= size - 1


def test_the_worked_sum_of_the_docs_is_what_is_printed() -> None:
    """FLUX.1-dev on a card of 8 GiB with a context of 0.4, and a budget of 6."""
    supply = replace(card(6 * GIB, total=8 * GIB), context=Figure(gib(0.4), "table"))
    page = (Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")
    assert f"```\n{make([flux_denoise()], supply).explain()}\n```" in page


def test_a_tile_that_was_asked_for_is_said_to_be_inexact() -> None:
    """Also where it is the only way, and where it is the first of several."""
    tile = Way("tiles 64x64", Figure(8 * MIB), exact=False)
    smaller = Way("tiles 32x32", Figure(4 * MIB), exact=False)
    for ways in ((tile,), (tile, smaller)):
        demand = Demand("decode", (Unit("all", MIB),), ways=ways)
        text = make([demand], Supply("virtual:64MiB", 64 * MIB, 64 * MIB)).explain()
        assert "tiles 64x64, not exact" in text


def test_two_stages_of_one_kind_have_heads_that_differ() -> None:
    """What they are done with tells them apart where the line is too short for more."""
    names = (
        "encode text (a-long-name-clip-l)",
        "encode text (a-long-name-t5)",
        "denoise",
        "decode",
    )
    demands = [Demand(name, (Unit("all", MIB),), Figure(MIB)) for name in names]
    text = make(demands, Supply("virtual:64MiB", 64 * MIB, 64 * MIB)).explain()
    assert " a-long-name-clip-l " in text
    assert " a-long-name-t5 " in text


@pytest.mark.parametrize(
    ("value", "said"), [(95.2, "95 s"), (0.72, "0.72 s"), (0.012, "12 ms"), (2e-6, "under 1 ms")]
)
def test_a_time_is_said_as_people_say_it(value: float, said: str) -> None:
    """No digits that nobody believes."""
    assert seconds(value) == said


def test_figures_of_neighbours_do_not_touch() -> None:
    """Four columns fill the line; the longest figures have nine characters."""
    size = 1004 * MIB + 410 * 1024
    demands = [Demand(f"stage {n}", (Unit("all", size),), Figure(size)) for n in range(4)]
    text = make(demands, Supply("virtual:64GiB", 64 * GIB, 64 * GIB)).explain()
    row = next(line for line in text.splitlines() if line.startswith("activations"))
    assert row.split()[1:] == ["1004", "MiB", "predicted"] * 4
