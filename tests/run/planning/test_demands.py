"""From weighed models to what the planner is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.run.planning.models import (
    BARE,
    CLIPS,
    NATIVE,
    BytesPerSample,
    decoder,
    denoiser,
    unknown,
)
from tightfit.card.outlook import Outlook, look
from tightfit.plan.demand import Demand
from tightfit.plan.size import Size
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.run.planning.demands import demands_of
from tightfit.run.planning.model import Model
from tightfit.units import MIB
from tightfit.weigh.blocks import Block, Leaf, Weights
from tightfit.weigh.workspace import LIBRARIES

JOB = Size(256, 128)


def ways(demand: Demand) -> list[str]:
    """By name, in order."""
    return [way.name for way in demand.ladder]


def test_a_stage_is_asked_for_under_its_name_with_its_weights() -> None:
    """Blocks with the modules in them; stages of one network share its weights."""
    denoise, decode = demands_of([denoiser(), decoder()], JOB, BARE)
    assert (denoise.stage, decode.stage) == ("denoise", "decode")
    assert denoise.weights == 40 * MIB
    assert [unit.name for unit in denoise.units] == [f"blocks.{at}" for at in range(4)]
    assert [part.name for part in denoise.units[0].parts] == ["blocks.0.a", "blocks.0.b"]
    assert (denoise.calls, denoise.inputs, denoise.model) == (28, 0, "made-up/transformer")
    assert denoise.sentence == "Not enough memory to denoise 256x128 with made-up/transformer."


def test_stages_of_one_kind_are_told_apart_by_as_little_as_it_takes() -> None:
    """The part of a pipeline, or the whole name where that is the same."""
    same = [denoiser(name="a/transformer"), denoiser(name="b/transformer")]
    other = [denoiser(name="a/transformer"), denoiser(name="a/transformer_2")]
    assert [demand.stage for demand in demands_of(same, JOB, BARE)] == [
        "denoise (a/transformer)",
        "denoise (b/transformer)",
    ]
    assert [demand.stage for demand in demands_of(other, JOB, BARE)] == [
        "denoise (transformer)",
        "denoise (transformer_2)",
    ]


def test_a_block_that_must_stay_says_why_and_modules_of_the_root_have_a_name() -> None:
    """What the planner prints is about something that can be found."""
    root = Block("", (Leaf("", MIB), Leaf("head", MIB)))
    model = replace(
        denoiser(),
        weights=Weights("odd", (root, Block("b", (Leaf("b", MIB, 4, 5),))), "keys"),
        staying=(("b", "`a` uses its `weight`"),),
    )
    (demand,) = demands_of([model], JOB, BARE)
    first, second = demand.units
    assert first.name == "root"
    assert [part.name for part in first.parts] == ["root (own)", "head"]
    assert (second.stays, second.parts) == ("`a` uses its `weight`", ())
    assert (second.converted, second.largest) == (4, 5)


def test_a_bare_card_has_tensors_alone() -> None:
    """No scratch inside operators, and reserved is allocated."""
    (demand,) = demands_of([denoiser()], JOB, BARE)
    (way,) = demand.ladder
    assert way.activations.bytes == 100 * JOB.area
    assert (way.workspace.bytes, way.slack.bytes) == (0, 0)


def test_a_real_allocator_has_scratch_libraries_and_slack() -> None:
    """Slack by the least limit that a replay told, else by a share, which is a table's."""
    dry = 100 * JOB.area
    told, guessed = (
        demands_of([denoiser(gauge=gauge)], JOB, NATIVE)[0].ladder[0]
        for gauge in (BytesPerSample(least=1.5), BytesPerSample())
    )
    assert told.workspace.bytes == guessed.workspace.bytes == dry // 10 + LIBRARIES
    assert told.slack.bytes == int(dry * 1.5) - (dry + dry // 10)
    assert guessed.slack.bytes is not None
    assert guessed.slack.bytes > dry // 10
    assert (told.slack.source, guessed.slack.source) == ("predicted", "table")


def test_what_is_not_known_is_asked_for_as_unknown() -> None:
    """The weights are known all the same."""
    (demand,) = demands_of([unknown()], JOB, NATIVE)
    (way,) = demand.ladder
    assert way.activations.bytes is None
    assert demand.flops is None
    assert demand.weights == 40 * MIB


def test_an_autoencoder_climbs_the_ladder_that_decode_climbs() -> None:
    """Whole, item by item, then tiles of one item; whole and items are exact."""
    (demand,) = demands_of([decoder()], replace(JOB, batch=3), BARE)
    assert ways(demand)[:3] == ["whole", "batch of 1", "tiles 128x192"]
    assert [way.exact for way in demand.ladder][:3] == [True, True, False]
    whole, one, tile = (way.activations.bytes for way in demand.ladder[:3])
    assert whole is not None
    assert one is not None
    assert whole == 3 * one
    assert tile == 100 * 128 * 192
    (single,) = demands_of([decoder()], JOB, BARE)
    assert ways(single)[:2] == ["whole", "tiles 128x192"]


def test_frames_are_items_to_a_vae_of_pictures_and_one_to_a_vae_of_clips() -> None:
    """At most a few at once; all of them are computed."""
    clip = Size(64, 64, frames=9)
    stills, clips = (
        demands_of([model], clip, BARE)[0] for model in (decoder(), decoder(steps=CLIPS))
    )
    assert stills.ladder[0].activations.bytes == 4 * 100 * clip.area
    assert clips.ladder[0].activations.bytes == 9 * 100 * clip.area
    assert ways(stills)[1] == "batch of 1"
    assert stills.flops == clips.flops == 9 * 100 * clip.area


def test_float32_takes_twice_as_long() -> None:
    """Its operations count twice against the rate of half precision."""
    half, full = (
        demands_of([decoder(dtype=dtype)], JOB, BARE)[0].flops for dtype in ("bfloat16", "float32")
    )
    assert half is not None
    assert full == 2 * half


def test_tiles_can_be_forbidden_forced_and_smaller_than_asked() -> None:
    """Forced ones replace the whole, unless they cover it."""
    wide = Size(1024, 1024, batch=2)
    never = demands_of([decoder()], wide, BARE, tile=parse_tile("off", None))[0]
    forced = demands_of([decoder()], wide, BARE, tile=parse_tile("256x512", None))[0]
    covers = demands_of([decoder()], wide, BARE, tile=parse_tile("2048", None))[0]
    assert ways(never) == ["whole", "batch of 1"]
    assert ways(forced)[:2] == ["tiles 256x512", "tiles 256x384"]
    assert ways(covers)[:3] == ["whole", "batch of 1", "tiles 768x768"]
    tiled = demands_of([denoiser()], wide, BARE, tile=parse_tile("256", None))[0]
    assert ways(tiled) == ["whole"]


CARDS = st.sampled_from(
    (BARE, NATIVE, look("virtual:rtx-3060"), look("virtual:6GiB,allocator=async"))
)
MODELS = st.sampled_from((denoiser(steps=CLIPS), decoder(), decoder(steps=CLIPS)))
WISHES = st.sampled_from(tuple(parse_tile(text, None) for text in ("auto", "off", "256", "96x128")))


@given(
    MODELS,
    CARDS,
    WISHES,
    st.builds(
        Size, st.integers(8, 2048), st.integers(8, 2048), st.integers(1, 90), st.integers(1, 6)
    ),
    st.tuples(*(st.integers(0, n) for n in (512, 512, 40, 5))),
)
def test_the_easiest_way_of_a_larger_job_is_no_easier(
    model: Model, card: Outlook, wish: TileWish, size: Size, more: tuple[int, int, int, int]
) -> None:
    """However it grows, and whatever was wished."""
    width, height, frames, batch = more
    large = Size(size.width + width, size.height + height, size.frames + frames, size.batch + batch)
    low, high = (
        min(
            way.activations.known + way.workspace.known + way.slack.known
            for way in demands_of([model], model.steps.cast(each), card, tile=wish)[0].ladder
        )
        for each in (size, large)
    )
    assert low <= high


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_an_allocator_that_fragments_has_a_line_for_it(allocator: str) -> None:
    """However little is allocated."""
    card = look(f"virtual:6GiB,allocator={allocator}")
    (way,) = demands_of([denoiser()], Size(8, 8), card)[0].ladder
    assert way.slack.bytes
