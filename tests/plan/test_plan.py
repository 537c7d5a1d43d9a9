"""The plan of a whole job: what holds for every plan, and the worked sum of FLUX.1-dev."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.models import card, flux_denoise, flux_pipeline, gib
from tests.plan.strategies import SMALL, jobs, supplies
from tightfit.errors import MemoryShortage
from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.figure import UNKNOWN, Figure, Rate
from tightfit.plan.plan import Plan, make
from tightfit.plan.stage import working_bytes
from tightfit.plan.streaming.residency import MODES, Mode
from tightfit.plan.supply import Host, Supply
from tightfit.units import GIB, MIB

MODE = st.sampled_from(MODES)


def without_host(supply: Supply) -> Supply:
    """The same card, with nothing known of the host."""
    return replace(supply, host=None)


def larger(demand: Demand, more: int) -> Demand:
    """The same job with more pixels, frames or items: every way needs more."""
    ways = tuple(
        replace(way, activations=Figure(way.activations.known + more)) for way in demand.ways
    )
    return replace(demand, activations=Figure(demand.activations.known + more), ways=ways)


@given(jobs(), supplies(), MODE)
def test_a_plan_that_fits_is_within_every_limit(
    demands: tuple[Demand, ...], supply: Supply, mode: Mode
) -> None:
    """Its books add up: budget, card, host, and not a weight is lost."""
    plan = make(demands, supply, mode=mode)
    plan.check()
    if not plan.fits:
        return
    for stage in plan.stages:
        assert stage.ledger.fits
        assert stage.residency is not None
        assert stage.peak_reserved is not None
        assert stage.peak_reserved <= supply.budget
        assert stage.residency.bytes <= stage.room - working_bytes(stage.demand, stage.way)
        names = {*stage.resident, *stage.streamed}
        assert len(names) == len(stage.resident) + len(stage.streamed)
    assert plan.peak_reserved == max(stage.peak_reserved or 0 for stage in plan.stages)


@given(jobs(), supplies(), MODE, st.integers(1, 40))
def test_less_budget_more_others_or_a_larger_reserve_never_turns_no_into_yes(
    demands: tuple[Demand, ...], supply: Supply, mode: Mode, step: int
) -> None:
    """Passing is monotone in what there is."""
    supply = without_host(supply)
    fits = make(demands, supply, mode=mode).fits
    others = supply.held_by_others.known + step * MIB
    for less in (
        replace(supply, budget=max(1, supply.budget - step * MIB)),
        replace(supply, held_by_others=Figure(others, "measured")),
        replace(supply, reserve=supply.reserve + step * MIB),
        replace(supply, held=supply.held + step * MIB),
        replace(supply, context=Figure(supply.context.known + step * MIB)),
    ):
        assert fits >= make(demands, less, mode=mode).fits


@given(jobs(), supplies(), MODE, st.integers(0, 2), SMALL)
def test_a_larger_job_never_turns_no_into_yes(
    demands: tuple[Demand, ...], supply: Supply, mode: Mode, at: int, more: int
) -> None:
    """Passing is monotone in pixels, frames and batch, for the host too."""
    at = min(at, len(demands) - 1)
    bigger = (*demands[:at], larger(demands[at], more), *demands[at + 1 :])
    supply = without_host(supply)
    assert make(demands, supply, mode=mode).fits >= make(bigger, supply, mode=mode).fits


@given(jobs(), supplies())
def test_a_mode_that_may_stream_more_fits_wherever_one_that_may_not_does(
    demands: tuple[Demand, ...], supply: Supply
) -> None:
    """``high`` within ``auto``, and that within ``none``."""
    supply = without_host(supply)
    fits = {mode: make(demands, supply, mode=mode).fits for mode in MODES}
    assert fits["high"] <= fits["auto"] == fits["low"] <= fits["none"]


@given(jobs(), supplies(), MODE)
def test_the_same_job_on_the_same_card_has_the_same_plan(
    demands: tuple[Demand, ...], supply: Supply, mode: Mode
) -> None:
    """No clock, no order of a set, no chance."""
    one, two = (make(demands, supply, mode=mode) for _ in range(2))
    assert one == two
    assert one.as_dict() == two.as_dict()
    assert one.explain() == two.explain()


@given(jobs(), supplies(), MODE)
def test_what_a_shortage_says_is_needed_is_enough_and_no_less_is(
    demands: tuple[Demand, ...], supply: Supply, mode: Mode
) -> None:
    """To the byte: the least of the stage that needs most."""
    supply = replace(without_host(supply), budget=1)
    plan = make(demands, supply, mode=mode)
    need = max(min(way.least for way in stage.ways) for stage in plan.stages)
    around = supply.held_by_others.known + supply.context.known + supply.reserve
    for size, fits in ((need, True), (need - 1, False)):
        if size < 1:
            continue
        exact = replace(supply, budget=supply.held + size, total=supply.held + size + around)
        assert make(demands, exact, mode=mode).fits is fits


@given(jobs(), supplies())
def test_what_is_said_to_keep_all_weights_resident_does(
    demands: tuple[Demand, ...], supply: Supply
) -> None:
    """And a byte less does not; what hides the copies does that."""
    supply = without_host(supply)
    plan = make(demands, supply)
    for stage in plan.stages:
        if not (stage.fits and stage.streamed):
            assert stage.keeps_all == 0
            continue
        more = stage.keeps_all
        assert not make([stage.demand], wider(supply, more)).stages[0].streamed
        assert make([stage.demand], wider(supply, more - 1)).stages[0].streamed
        if stage.hides_copies is not None:
            assert stage.hides_copies < more
            pace = make([stage.demand], wider(supply, stage.hides_copies)).stages[0].pace
            assert pace is not None
            assert pace.binds == "compute"


def wider(supply: Supply, more: int) -> Supply:
    """So much more room."""
    return replace(supply, budget=supply.budget + more, total=supply.total + more)


def test_flux_at_six_gib_is_the_worked_sum() -> None:
    """Activations 0.46, two slots of a leaf 0.21, 5.3 resident, 16.8 a step: 0.72 s at 25 GB/s."""
    plan = make([flux_denoise()], card(6 * GIB))
    plan.check()
    (stage,) = plan.stages
    residency, pace = stage.residency, stage.pace
    assert residency is not None
    assert pace is not None
    assert (residency.ring.level, residency.ring.slots) == ("leaf", 2)
    assert residency.ring.bytes == 2 * 108 * MIB
    assert residency.resident_bytes / GIB == pytest.approx(5.33, abs=0.01)
    assert residency.streamed_bytes / GIB == pytest.approx(16.84, abs=0.01)
    assert pace.seconds == pytest.approx(0.72, abs=0.005)
    assert pace.at_least
    assert "compute time of denoise" in plan.not_predicted
    assert plan.peak_reserved is not None
    assert 0.99 * 6 * GIB < plan.peak_reserved <= 6 * GIB


def test_the_context_comes_off_the_card_and_not_off_the_budget() -> None:
    """The same plan on a card of 6.4 GiB with a context of 0.4 and a budget of 6."""
    alone = make([flux_denoise()], card(gib(6)))
    beside = replace(card(gib(6), total=gib(6.5)), context=Figure(gib(0.4), "table"))
    assert make([flux_denoise()], beside).stages[0].residency == alone.stages[0].residency


def test_a_fixed_cost_is_in_the_plan_at_every_size_of_the_job() -> None:
    """The second seed: a dequantised matrix of 648 MiB does not shrink with the picture."""
    units = tuple(
        Unit(f"b{at}", 500 * MIB, largest=324 * MIB, converted=648 * MIB) for at in range(48)
    )
    for activations in (0, 100, 2000):
        demand = Demand("denoise", units, Figure(activations * MIB))
        plan = make([demand], card(12 * GIB))
        lines = plan.stages[0].ledger.lines
        assert lines["conversion"].bytes == 648 * MIB
        assert plan.fits
    tight = replace(card(GIB), link=Rate(None))
    assert not make([Demand("denoise", units, Figure(400 * MIB))], tight).fits


def test_stages_have_the_card_in_turn_unless_all_their_weights_fit() -> None:
    """Then nothing is copied between them, and the idle weights have a line."""
    small = make(flux_pipeline(), card(8 * GIB))
    assert small.fits
    assert not small.together
    assert small.stage("denoise").ledger.lines["weights_idle"].bytes == 0
    large = make(flux_pipeline(), card(40 * GIB))
    assert large.together
    decode = large.stage("decode").ledger
    assert decode.of("weights_resident", "weights_idle") == sum(
        stage.demand.weights for stage in large.stages
    )
    large.check()
    with pytest.raises(KeyError):
        large.stage("encode film")


def test_stages_of_one_model_share_its_weights() -> None:
    """A VAE that encodes and decodes is there once."""
    vae = (Unit("vae", 40 * MIB),)
    job = [
        Demand("encode", vae, Figure(10 * MIB), model="vae"),
        Demand("decode", vae, Figure(20 * MIB), model="vae"),
    ]
    plan = make(job, replace(card(64 * MIB), host=Host(64 * MIB, 45 * MIB)))
    assert plan.fits
    assert not plan.together
    assert plan.host is not None
    assert plan.host.masters == 40 * MIB


def test_the_first_way_that_fits_is_taken_and_an_exact_one_before_tiles() -> None:
    """With what the whole would need."""
    (*_, decode) = flux_pipeline()
    taken = {size: make([decode], card(gib(size))).stages[0].way.name for size in (2.2, 1.4, 0.7)}
    assert taken == {2.2: "whole", 1.4: "strips", 0.7: "tiles of 512"}
    plan = make([decode], card(gib(0.7)))
    assert not plan.exact
    assert [way.fits for way in plan.stages[0].ways] == [False, False, True]
    assert plan.stages[0].ways[0].whole == gib(1.8) + 160 * MIB


def test_what_is_unknown_is_said_and_the_rest_is_planned() -> None:
    """Never silently 0: the line is null, and so is every sum that it is part of."""
    demand = replace(flux_denoise(), activations=UNKNOWN, slack=UNKNOWN)
    plan = make([demand], replace(card(6 * GIB), context=UNKNOWN))
    assert plan.fits
    assert plan.stages[0].residency is not None
    assert {"activations of denoise", "slack of denoise", "the device context"} <= set(
        plan.not_predicted
    )
    assert plan.peak_allocated is None
    assert plan.peak_reserved is None
    assert plan.as_dict()["stages"][0]["ledger"]["activations"]["bytes"] is None
    assert "as far as it is predicted" in plan.explain()


def test_models_do_not_stay_together_where_something_is_unknown() -> None:
    """What could go would take what the unknown needs."""
    first, second = Demand("a", (Unit("a", MIB),), UNKNOWN), Demand("b", (Unit("b", MIB),))
    assert not make([first, second], card(GIB)).together


def test_low_says_where_it_cannot_tell_what_costs_no_time() -> None:
    """Without the compute time it keeps all that fits."""
    plan = make([flux_denoise()], card(6 * GIB), mode="low")
    assert "which weights of denoise cost no time when streamed" in plan.not_predicted


def test_low_streams_at_the_speed_of_auto_and_takes_less() -> None:
    """Where compute binds, residency buys nothing."""
    demand = replace(flux_denoise(), seconds=1.0)
    supply = card(16 * GIB)
    low, auto = (make([demand], supply, mode=mode).stages[0] for mode in ("low", "auto"))
    assert low.residency is not None
    assert auto.residency is not None
    assert low.residency.bytes < auto.residency.bytes
    assert low.pace is not None
    assert low.pace.limit_seconds == 1.0


def shortage_of(plan: Plan) -> str:
    """What is said of a plan that does not fit."""
    assert not plan.fits
    error = plan.shortage()
    assert isinstance(error, MemoryShortage)
    return str(error)


def test_a_shortage_says_what_how_much_what_was_tried_and_what_to_do() -> None:
    """In the form of every error of ours."""
    *_, decode = flux_pipeline()
    supply = replace(card(gib(0.5), total=8 * GIB), held_by_others=Figure(GIB, "measured"))
    assert shortage_of(make([decode], supply)).splitlines() == [
        "Not enough memory to decode 1024x1024.",
        "Needs 672.0 MiB; 512.0 MiB can be used on virtual:8.0GiB (8.0 GiB in all, budget "
        "512.0 MiB, 1.0 GiB held by other programs).",
        "Tried: whole, all weights resident (2.0 GiB), strips, all weights resident (1.2 GiB), "
        "tiles of 512, all weights resident (672.0 MiB).",
        "Try: a budget of 672.0 MiB (--vram), or a smaller or shorter input.",
    ]


def test_a_shortage_advises_only_what_can_help() -> None:
    """A smaller picture does not shrink a fixed cost, and a reserve of 0 cannot be smaller."""
    demand = Demand("denoise", (Unit("b", 100 * MIB),), Figure(MIB))
    said = shortage_of(make([demand], card(64 * MIB)))
    assert "Try: a larger card." in said
    high = shortage_of(make([flux_denoise()], card(6 * GIB), mode="high"))
    assert "--vram-mode auto" in high
    assert "streamed" not in high.partition("Tried")[2].partition("Try:")[0]
    kept = replace(card(64 * MIB), reserve=30 * MIB)
    small = Demand("denoise", (Unit("b", 40 * MIB),), Figure(MIB))
    assert "a smaller --reserve-vram" in shortage_of(make([small], kept))
    others = replace(card(64 * MIB), held_by_others=Figure(30 * MIB, "measured"))
    assert "close the other programs" in shortage_of(make([small], others))


def test_a_host_that_is_too_small_is_said_beforehand() -> None:
    """Weights without a file need memory; so do the activations of strips."""
    plan = make([flux_denoise()], card(6 * GIB, host=Host(32 * GIB, 16 * GIB)))
    said = shortage_of(plan)
    assert said.startswith("Not enough host memory to denoise 1024x1024 with FLUX.1-dev.")
    assert "Needs 22.2 GiB; 16.0 GiB of RAM can be used (32.0 GiB in all)." in said
    mapped = replace(flux_denoise(), mapped=True)
    kept = make([mapped], card(6 * GIB, host=Host(32 * GIB, 16 * GIB)))
    assert kept.fits
    assert kept.host is not None
    assert kept.host.mapped > 0
    assert "copy time of denoise" in kept.not_predicted


def test_strips_that_need_the_host_are_counted_there() -> None:
    """The way that is taken decides."""
    ways = (Way("strips", Figure(MIB), host=Figure(20 * GIB)),)
    demand = Demand("decode", (Unit("vae", MIB),), ways=ways)
    host = Host(32 * GIB, 16 * GIB)
    assert "Not enough host memory" in shortage_of(make([demand], card(GIB, host=host)))


def test_a_plan_that_fits_has_no_shortage() -> None:
    """Nobody asks for one."""
    with pytest.raises(ValueError, match="no shortage"):
        make([flux_denoise()], card(6 * GIB)).shortage()


def test_what_must_stay_is_named_with_its_reason() -> None:
    """So that nobody wonders why it is on the card."""
    units = (Unit("head", MIB, stays="its weight is used without calling it"), Unit("b", MIB))
    plan = make([Demand("denoise", units, Figure(0))], card(GIB), mode="none")
    assert plan.stages[0].must_stay == {"head": "its weight is used without calling it"}
    assert plan.stages[0].resident == ("head",)
