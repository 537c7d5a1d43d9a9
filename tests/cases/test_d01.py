"""D01: what is asked for on the second card touches no other one."""

from __future__ import annotations

import gc

import pytest

from tests.cases.common import assert_back, virtual
from tests.cases.d01 import JOBS

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)


@pytest.mark.parametrize("job", JOBS)
def test_d01_the_first_card_is_never_touched(job: str) -> None:
    """Its peak is 0 bytes throughout, no request is made of it, and nobody waits for it."""
    if job == "lora":
        pytest.importorskip("peft")
    first, second = virtual("1GiB"), virtual("1GiB")
    JOBS[job](second)
    reading = first.read()
    assert reading.peak_allocated == reading.peak_reserved == 0
    assert first.allocations == first.syncs == 0
    assert (second.read().peak_allocated or 0) > 0
    gc.collect()  # schedulers keep times on their card
    assert_back(second)
