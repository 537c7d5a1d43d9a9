"""Models that were weighed, and the sizes of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.run.planning.models import CLIPS, PICTURES, decoder, denoiser, unknown
from tightfit.errors import UsageError
from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.plan.size import Size
from tightfit.run.planning.model import Shape, cast_size, items_of, whole_call
from tightfit.run.planning.steps import ANY, Steps

SIZES = st.builds(
    Size, st.integers(1, 2048), st.integers(1, 2048), st.integers(1, 90), st.integers(1, 9)
)


@given(SIZES)
def test_all_models_of_a_job_take_the_size_that_it_is_cast_to(size: Size) -> None:
    """Whatever their order, and a second time nothing changes."""
    models = [
        Shape("a", "denoise", Steps(16, 4)),
        Shape("b", "decode", Steps(32, 8)),
        Shape("c", "encode text", ANY),
    ]
    cast = cast_size(models, size)
    assert cast == cast_size(models[::-1], size) == cast_size(models, cast)
    assert all(model.steps.cast(cast) == cast for model in models)


def test_a_denoiser_of_pictures_refuses_a_clip() -> None:
    """By name, with what was asked for."""
    with pytest.raises(UsageError, match="made-up/transformer makes pictures, not 5 frames"):
        cast_size([denoiser(), decoder()], Size(64, 64, 5))
    assert cast_size([decoder()], Size(64, 64, 5)).frames == 5
    assert cast_size([unknown()], Size(64, 64, 5)).frames == 5


def test_sides_that_one_model_does_not_take_are_refused_for_the_job() -> None:
    """After padding, which may go beyond the limit."""
    model = denoiser(steps=Steps(16, None, largest=100))
    assert cast_size([model], Size(96, 96)) == Size(96, 96)
    with pytest.raises(UsageError, match="sides of up to 100 pixels"):
        cast_size([model], Size(97, 97))


@given(SIZES)
def test_the_largest_call_is_never_more_than_the_job(size: Size) -> None:
    """An autoencoder takes a few items at a time, one of pictures each frame as an item."""
    assert whole_call("denoise", CLIPS, size) == size
    assert whole_call("run", ANY, size) == size
    clips, stills = (whole_call("decode", steps, size) for steps in (CLIPS, PICTURES))
    assert (clips.frames, clips.batch) == (size.frames, min(size.batch, MOST_AT_ONCE))
    assert (stills.frames, stills.batch) == (1, min(size.batch * size.frames, MOST_AT_ONCE))
    assert items_of(PICTURES, size) == size.batch * size.frames
    assert items_of(CLIPS, size) == size.batch


@given(SIZES, SIZES)
def test_encoders_of_text_see_prompts_and_no_picture(one: Size, two: Size) -> None:
    """One size of the job is as good as another."""
    for stage in ("encode text", "encode image"):
        assert whole_call(stage, ANY, one).batch == one.batch
        same = Size(two.width, two.height, two.frames, one.batch)
        assert whole_call(stage, ANY, one) == whole_call(stage, ANY, same)
