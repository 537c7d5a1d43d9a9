"""Facts about a real CUDA card; run once for each allocator (PYTORCH_CUDA_ALLOC_CONF)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.common import emptied
from tightfit.card import Card, open_card
from tightfit.plan.tilesize import TileWish
from tightfit.run.job import Job, Request
from tightfit.run.outcome import Outcome
from tightfit.run.rungs import Progress
from tightfit.run.vae import Vae
from tightfit.testing.toys import toy_vae
from tightfit.units import GIB, MIB
from tightfit.weigh import weight_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
ROUNDING = 2 * MIB


@pytest.fixture(name="card")
def opened() -> Iterator[Card]:
    """The first CUDA card, checked to be empty of this test afterwards."""
    card = open_card("cuda:0")
    emptied()
    card.trim()
    before = card.read().allocated
    yield card
    emptied()
    card.trim()
    card.check()
    assert card.read().allocated == before


@pytest.fixture(name="vae", scope="module")
def streaming() -> Vae:
    """A causal toy that keeps a feature cache on itself."""
    return toy_vae("V3", width=32)


@pytest.fixture(name="clip", scope="module")
def smooth() -> torch.Tensor:
    """[1,3,13,768,768] in [-1, 1]."""
    coarse = torch.randn(1, 3, 4, 12, 12, generator=torch.Generator().manual_seed(3))
    return torch.nn.functional.interpolate(coarse, size=(13, 768, 768), mode="trilinear").tanh()


def encode(
    card: Card,
    vae: Vae,
    clip: torch.Tensor,
    *,
    budget: int | None = None,
    tile: str = "auto",
    progress: Progress | None = None,
) -> Outcome:
    """Try every rung, from the top, within `budget` (default: the whole card)."""
    request = Request(budget or card.read().total, wish=TileWish(mode=tile), estimate=False)
    return Job(vae, "encode", card, request, progress=progress).run(clip)


def three_quarters(card: Card, vae: Vae, clip: torch.Tensor) -> int:
    """A budget in which tiles fit and the whole does not."""
    peak = encode(card, vae, clip, tile="off").peak_bytes
    assert peak is not None
    return peak * 3 // 4


def test_an_allocation_above_the_cap_raises_and_one_after_it_does_not(card: Card) -> None:
    """The cap holds inside the block alone."""
    with card.cap(GIB), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GIB, dtype=torch.uint8, device=card.device)
    assert torch.empty(2 * GIB, dtype=torch.uint8, device=card.device).nbytes == 2 * GIB


def test_the_cap_is_gone_after_an_error(card: Card) -> None:
    """The error path restores too."""
    with pytest.raises(RuntimeError, match="planted"), card.cap(GIB):
        raise RuntimeError("planted")
    assert torch.empty(2 * GIB, dtype=torch.uint8, device=card.device).nbytes == 2 * GIB


def test_a_tensor_that_outlives_the_cap_stays_valid_and_counted(card: Card) -> None:
    """What was made under a cap is still somebody's afterwards."""
    before = card.read().allocated
    with card.cap(GIB):
        kept = torch.full((64, MIB), 7, dtype=torch.uint8, device=card.device)
    card.trim()
    held = card.read().allocated
    assert before is not None
    assert held is not None
    assert 64 * MIB <= held - before <= 64 * MIB + ROUNDING
    assert bool((kept == 7).all())


def test_a02_a_users_tighter_limit_stays_and_comes_back(
    card: Card, vae: Vae, clip: torch.Tensor
) -> None:
    """A limit that the user set is never widened, and a job runs inside it."""
    budget = three_quarters(card, vae, clip)
    theirs = budget / card.read().total
    torch.cuda.set_per_process_memory_fraction(theirs)
    try:
        outcome = encode(card, vae, clip, budget=8 * budget)
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(theirs, rel=1e-6)
        with card.cap(8 * budget), pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * budget, dtype=torch.uint8, device=card.device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= budget


def test_o01_the_fallback_starts_with_weights_and_input_alone(
    card: Card, vae: Vae, clip: torch.Tensor
) -> None:
    """Twenty times in one process: the failed try leaves nothing."""
    budget = three_quarters(card, vae, clip)
    expected = weight_bytes(vae.module) + clip.nbytes
    for _ in range(20):
        outcome = encode(card, vae, clip, budget=budget)
        first, second = outcome.attempts[:2]
        assert first.outcome == "oom"
        assert second.held_before_bytes == second.baseline_bytes == outcome.baseline_bytes
        assert outcome.before_bytes is not None
        assert second.held_before_bytes is not None
        held = second.held_before_bytes - outcome.before_bytes
        assert abs(held - expected) <= ROUNDING
        assert outcome.after_bytes == outcome.before_bytes


def test_peak_reserved_stays_within_the_budget(card: Card, vae: Vae, clip: torch.Tensor) -> None:
    """Failed tries included."""
    most = three_quarters(card, vae, clip)
    for budget in (most, most * 2 // 3, most // 2):
        outcome = encode(card, vae, clip, budget=budget)
        assert outcome.peak_reserved_bytes is not None
        assert outcome.peak_reserved_bytes <= budget


def test_ctrl_c_in_the_middle_of_the_tiles_leaves_what_was_there(
    card: Card, vae: Vae, clip: torch.Tensor
) -> None:
    """The user stops after the second tile."""
    budget = three_quarters(card, vae, clip)
    before = card.read().allocated

    def stop(rung: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(card, vae, clip, budget=budget, progress=stop)
    assert card.read().allocated == before


def test_two_encodes_give_the_same_bits(card: Card, vae: Vae, clip: torch.Tensor) -> None:
    """Same rung, same room, same bits."""
    one, other = (encode(card, vae, clip, tile="off") for _ in range(2))
    assert torch.equal(one.value, other.value)


def test_a_refused_workspace_is_counted_though_nothing_was_raised(card: Card) -> None:
    """A convolution that cannot get its workspace takes another algorithm, silently."""
    if card.allocator == "async":
        pytest.skip("cudaMallocAsync keeps no count of what it refuses")
    image = torch.randn(1, 256, 1024, 1024, device=card.device).to(torch.bfloat16)
    kernel = torch.randn(128, 256, 3, 3, device=card.device).to(torch.bfloat16)
    card.trim()
    held = card.read().reserved
    assert held is not None
    before = card.read()
    with card.cap(held + 256 * MIB + 300 * MIB):
        torch.nn.functional.conv2d(image, kernel, padding=1)
        card.sync()
    assert card.read().refused_since(before)


def test_the_context_is_known(card: Card) -> None:
    """What the process holds outside its allocator is some hundreds of MiB."""
    context = card.read().context
    assert context is not None
    assert 64 * MIB < context < 4 * GIB


def test_the_grain_is_as_the_driver_takes_it(card: Card) -> None:
    """Under cudaMallocAsync one byte takes a grain; elsewhere it is not asked for."""
    if card.allocator != "async":
        pytest.skip("only cudaMallocAsync has one grain")
    card.trim()
    with card.cap(1 * GIB):
        before = card.read().reserved
        byte = torch.empty(1, dtype=torch.uint8, device=card.device)
        after = card.read().reserved
        del byte
    assert before is not None
    assert after is not None
    assert after - before == card.grain


def test_scratch_of_libraries_keeps_no_segment_of_a_large_job(card: Card) -> None:
    """Made while the cache was full, it lies in a segment that is many times as large."""
    if card.allocator != "native":
        pytest.skip("other allocators give back parts of a segment")
    emptied()
    card.trim()
    before = card.read().reserved
    large = torch.empty(512 * MIB, dtype=torch.uint8, device=card.device)
    del large
    square = torch.ones(256, 256, device=card.device)
    product = square @ square
    card.sync()
    card.drop_scratch()
    del square, product
    card.trim()
    after = card.read().reserved
    assert before is not None
    assert after is not None
    assert after - before < 64 * MIB
