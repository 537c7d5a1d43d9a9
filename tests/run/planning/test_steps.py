"""Which sizes networks take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.plan.size import Size
from tightfit.run.planning.steps import ANY, Steps, steps_of
from tightfit.weigh.files.autoencoders import QWEN_IMAGE
from tightfit.weigh.files.recognise import FAMILIES

KNOWN = [
    known
    for known in (*(k for family in FAMILIES for k in family.members.values()), QWEN_IMAGE)
    if known.part != "text_encoder"
]
STEPS = st.builds(
    Steps, st.sampled_from((1, 8, 16, 32)), st.sampled_from((None, 1, 4, 8)), st.none()
)
SIZES = st.builds(Size, st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 200))


@given(STEPS, SIZES)
def test_a_cast_size_is_the_next_one_that_is_taken(steps: Steps, size: Size) -> None:
    """Never smaller, less than a step larger, and left alone from then on."""
    cast = steps.cast(size)
    assert steps.cast(cast) == cast
    for side, asked in ((cast.width, size.width), (cast.height, size.height)):
        assert side % steps.side == 0
        assert 0 <= side - asked < steps.side
    assert (cast.frames - 1) % (steps.frames or 1) == 0
    assert 0 <= cast.frames - size.frames < (steps.frames or 1)
    assert cast.batch == size.batch


@given(STEPS, SIZES, SIZES)
def test_a_larger_size_is_cast_to_no_smaller_one(steps: Steps, one: Size, two: Size) -> None:
    """So what grows in the job grows in the plan."""
    small = Size(min(one.width, two.width), min(one.height, two.height), one.frames)
    low, high = steps.cast(small), steps.cast(one)
    assert low.width <= high.width
    assert low.height <= high.height


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_every_known_network_that_sees_a_picture_has_its_steps(known: object) -> None:
    """A class that is added to the headers is added here."""
    assert steps_of(known.name, known.class_name) != ANY  # type: ignore[attr-defined]


def test_text_encoders_and_unknown_networks_take_what_comes() -> None:
    """They say nothing of clips either."""
    assert steps_of("t5-xxl", "T5EncoderModel") == ANY
    assert ANY.makes_clips is None
    assert ANY.cast(Size(3, 5, 7)) == Size(3, 5, 7)
    assert Steps(16, None).makes_clips is False
    assert Steps(16, 4).makes_clips is True


def test_sides_beyond_the_position_table_are_refused_with_the_limit() -> None:
    """In the words of the network."""
    steps = Steps(16, None, largest=1024)
    steps.check(Size(1024, 512), "made-up/transformer")
    with pytest.raises(UsageError, match="made-up/transformer takes sides of up to 1024 pixels"):
        steps.check(Size(512, 1040), "made-up/transformer")
