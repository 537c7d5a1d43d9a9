"""What headers say of sizes is what the libraries do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightfit.adapters.known.sizes import cast_sizes
from tightfit.adapters.parts import find_parts
from tightfit.api.planning.parts_source import steps_of_part
from tightfit.plan.size import Size
from tightfit.run.planning.steps import ANY, steps_of
from tightfit.weigh.files.autoencoders import QWEN_IMAGE
from tightfit.weigh.files.recognise import FAMILIES

KNOWN = [
    known
    for known in (*(k for family in FAMILIES for k in family.members.values()), QWEN_IMAGE)
    if known.part != "text_encoder"
]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_file_is_planned_at_the_size_that_its_network_is_run_at(known: object) -> None:
    """The same steps, limits and padding by either route."""
    (part,) = find_parts(f"random:{known.name}")  # type: ignore[attr-defined]
    steps = steps_of(known.name, known.class_name)  # type: ignore[attr-defined]
    assert steps == steps_of_part(part)
    frames = 1 if steps.frames is None else 6
    for size in (Size(100, 77, frames), Size(1000, 520, frames), Size(64, 64)):
        assert steps.cast(size) == cast_sizes(part, size)


def test_a_class_that_is_not_known_takes_what_comes() -> None:
    """Rather than an error: the plan goes on and says what is not predicted."""
    (part,) = find_parts("random:flux.1-dev/transformer")
    assert steps_of_part(replace(part, class_name="NoSuchTransformer")) == ANY
