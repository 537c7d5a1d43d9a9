"""What every case checks, and the free card that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.ladder import PROBE
from tightfit.run.outcome import Outcome
from tightfit.run.vae import Direction, Vae
from tightfit.testing import toy_vae
from tightfit.units import GIB
from tightfit.weigh import identity, weights

OFF = parse_tile("off")


def virtual(size: int | str) -> VirtualCard:
    """A card of so many bytes, or as the text says."""
    card = open_card(f"virtual:{size}B" if isinstance(size, int) else f"virtual:{size}")
    assert isinstance(card, VirtualCard)
    return card


@dataclass(frozen=True)
class Measured:
    """A run on a card without limits.

    Attributes:
        value: the result.
        base: bytes of weights and input on the card.
        peak: bytes beyond `base`.
    """

    value: torch.Tensor
    base: int
    peak: int


def measured(
    vae: Vae, direction: Direction, source: torch.Tensor, wish: TileWish = OFF
) -> Measured:
    """Run without limits: untiled, or with the tile of `wish`."""
    card = virtual(64 * GIB)
    outcome = Job(vae, direction, card, Request(64 * GIB, wish=wish, estimate=False)).run(source)
    assert outcome.baseline_bytes is not None
    assert outcome.peak_bytes is not None
    return Measured(
        outcome.value, outcome.baseline_bytes, outcome.peak_bytes - outcome.baseline_bytes
    )


_FOREIGN = torch.zeros(())


def untold(vae: Vae) -> Vae:
    """The same, but strips cannot be told of it: it reads a tensor that is no weight of it.

    So tiles come next after the whole, as they do for such a network.
    """

    def reading(call: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            _FOREIGN.neg()
            return call(x)

        return run

    moments = None if vae.moments is None else reading(vae.moments)
    return replace(vae, encode=reading(vae.encode), decode=reading(vae.decode), moments=moments)


def weights_and_input(vae: Vae, source: torch.Tensor) -> int:
    """What a card without slack holds when both are on it."""
    unique = {identity(held.tensor): held.tensor.nbytes for held in weights(vae.module)}
    return sum(round_up(size, ALIGNMENT) for size in (*unique.values(), source.nbytes))


def run_checked(
    job: Job,
    source: torch.Tensor,
    reference: torch.Tensor | None = None,
    *,
    tolerance: float = 1e-5,
) -> Outcome:
    """Run, and check what every case checks; a tolerance of 0 is bit for bit."""
    card, budget = job.card, job.request.budget
    assert isinstance(card, VirtualCard)
    before = card.read().allocated
    outcome = job.run(source)
    assert_back(card, before)
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= budget
    assert outcome.before_bytes == outcome.after_bytes == before
    assert_honest(outcome)
    assert outcome.value.device.type == "cpu"
    assert outcome.value.grad_fn is None
    if reference is not None:
        assert outcome.value.shape == reference.shape
        if tolerance == 0:
            assert torch.equal(outcome.value, reference)
        else:
            torch.testing.assert_close(outcome.value, reference, rtol=0, atol=tolerance)
    return outcome


def assert_back(card: VirtualCard, before: int | None = 0) -> None:
    """The card holds what it held, its books add up, and nothing is cached."""
    card.check()
    assert card.read().allocated == before
    if not before:
        assert card.read().reserved == 0


def assert_honest(outcome: Outcome) -> None:
    """In each stage the last holds, those before it do not and say why; never the same twice.

    A probe gives nothing, so it may fail.
    """
    for stage in {attempt.stage for attempt in outcome.attempts} - {PROBE}:
        *failed, last = (attempt for attempt in outcome.attempts if attempt.stage == stage)
        assert last.outcome == "ok"
        assert {attempt.outcome for attempt in failed} <= {"oom", "skipped"}
        assert all(attempt.reason for attempt in failed)
    assert all(a.peak_bytes is not None for a in outcome.attempts if tried(a))
    tries = [(a.stage, a.rung, a.tile) for a in outcome.attempts if tried(a)]
    assert len(set(tries)) == len(tries)
    assert outcome.attempt.held_before_bytes == outcome.attempt.baseline_bytes
    assert outcome.exact == outcome.attempt.exact


def tried(attempt: Any) -> bool:
    """Not skipped."""
    return bool(attempt.outcome != "skipped")


def assert_usable(card: VirtualCard) -> None:
    """The same process does a small job on the same card, correctly."""
    vae, source = toy_vae("V2"), torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    outcome = Job(vae, "encode", card, Request(card.spec.total)).run(source)
    torch.testing.assert_close(outcome.value, vae.encode(source), rtol=0, atol=1e-6)
    assert_back(card)


class Idle:
    """Another model, idle on the card; gives its memory back when it is asked to."""

    def __init__(self, device: torch.device, *sizes: int) -> None:
        self.blocks = [torch.zeros(size // 4, device=device) for size in sizes]
        self.asked: list[int | None] = []

    def evict(self, need: int | None) -> int:
        """Free blocks until `need` bytes are free, all of them for None; the bytes freed."""
        self.asked.append(need)
        freed = 0
        while self.blocks and (need is None or freed < need):
            freed += self.blocks.pop().nbytes
        return freed
