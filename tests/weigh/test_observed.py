"""Scratch learnt from a run that was watched: on a virtual card, and as CUDA was seen to move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tightfit.card import open_card
from tightfit.units import MIB
from tightfit.weigh.dry import Call, DryRun, Step, dry_run
from tightfit.weigh.observed import Learnt, learn
from tightfit.weigh.workspace import Workspaces, peak_of, sequence

WEIGHT = (8, 8, 3, 3)
CONV = "convolution 8x8x3x3"
S = 8 * MIB


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3)).eval()


def _dry(size: int) -> DryRun:
    net = _net().to("meta")
    source = torch.empty(1, 3, size, size, device="meta")
    return dry_run(lambda: net(source))


def _real(size: int, share: float, allocator: str = "exact") -> tuple[list[int], int]:
    """The moves of a real run, and the peak over weights and input."""
    card = open_card(f"virtual:256MiB,allocator={allocator}")
    card.faults.workspace = lambda operator, given: (
        int(given * share) if "convolution" in operator else 0
    )
    with torch.no_grad():
        net = _net().to(card.device)
        source = torch.rand(1, 3, size, size).to(card.device)
        card.reset_peaks()
        before = card.read().allocated
        with card.moves() as moves:
            net(source)
    return list(moves), card.read().peak_allocated - before


def made(*operators: Call | int) -> DryRun:
    """A run in which each call makes one tensor; a number n ends the n-th one made."""
    steps: list[Step] = []
    calls: list[Call] = []
    for operator in operators:
        if isinstance(operator, int):
            steps.append(Step(operator, 0))
        else:
            steps.append(Step(1 + len(calls), operator.writes))
            calls.append(replace(operator, after=len(steps)))
    return DryRun(0, "", tuple(steps), tuple(calls), 0)


def conv(reads: int = S, writes: int = S, weight: tuple[int, ...] = WEIGHT) -> Call:
    return Call("convolution", weight, reads, writes, 0)


def other(name: str = "silu", size: int = S) -> Call:
    return Call(name, (), size, size, 0)


def share_of(learnt: Learnt) -> float:
    return learnt.shares[CONV]


def expected(scratch: int) -> object:
    """Per byte read and written; the weights here weigh next to nothing."""
    return pytest.approx(scratch / (2 * S), rel=0.001)


@pytest.mark.parametrize("allocator", ["exact", "native"])
def test_scratch_seen_at_one_size_predicts_the_peak_at_another(allocator: str) -> None:
    """Within two per cent at four times the pixels, where nothing learnt is far off."""
    moves, _ = _real(64, share=1.5, allocator=allocator)
    learnt = learn(_dry(64), moves)
    _, measured = _real(128, share=1.5)
    predicted = peak_of(sequence(_dry(128), Workspaces(learnt=learnt.shares)))
    assert learnt.matched == 1.0
    assert abs(predicted / measured - 1) < 0.02
    assert _dry(128).peak < measured * 0.8


def test_a_run_without_scratch_teaches_that_there_is_none() -> None:
    """Every share is 0, which comes before any table."""
    moves, _ = _real(64, share=0.0)
    learnt = learn(_dry(64), moves)
    assert set(learnt.shares.values()) == {0.0}
    assert Workspaces(table=True, learnt=learnt.shares).of(_dry(64).calls[0]) == 0


def test_another_run_altogether_does_not_match() -> None:
    """The caller can see that nothing was learnt from it."""
    assert learn(_dry(64), [3 * MIB + 7, -(3 * MIB + 7)]).matched == 0.0


def test_a_run_that_was_not_seen_at_all_teaches_nothing() -> None:
    """Nor does one that makes nothing."""
    assert learn(made(other(), conv(), 1), []).matched == 0.0
    assert learn(DryRun(0, "", (), (), 0), [S, -S]).matched == 0.0


RUN = made(other(), conv(), 1, other(), 2, 3)
"""input +S, convolution +S, input ends, another +S, and both end"""


def test_scratch_of_the_very_size_of_a_result_is_scratch() -> None:
    """The commonest sizes in a network are the same; only the order tells them apart."""
    learnt = learn(RUN, [S, S, S, -S, -S, S, -S, -S])
    assert share_of(learnt) == expected(S)
    assert learnt.matched == 1.0
    assert "silu" not in learnt.shares


@pytest.mark.parametrize(
    "changes",
    [
        [S, S, 2 * S, -2 * S, -S, S, -S, -S],
        [S, S, 2 * S, -S, -2 * S, S, -S, -S],
        [S, S, S, S, -S, -S, -S, S, -S, -S],
        [S, S, 2 * S, -2 * S, S, -S, -S, -S],
    ],
    ids=["as ever", "given back after the input", "in two pieces", "the input ends late"],
)
def test_the_order_of_frees_changes_nothing(changes: list[int]) -> None:
    """A convolution's scratch is there once its result is, whoever goes first afterwards."""
    learnt = learn(RUN, changes)
    assert share_of(learnt) == expected(2 * S)


def test_weights_that_a_kernel_reorders_do_not_grow_with_the_picture() -> None:
    """At the small size they are most of its scratch: input, output and weights once more."""
    small, large = (conv(size, size, (512, 512, 3, 3)) for size in (MIB // 4, 64 * MIB))
    weights = 512 * 512 * 9 * 2
    seen = MIB // 2 + weights
    learnt = learn(made(small, 1), [MIB // 4, seen, -seen, -MIB // 4])
    foreseen = Workspaces(learnt=learnt.shares).of(large)
    assert foreseen == pytest.approx(128 * MIB + weights, rel=1e-6)


def test_the_second_tensor_of_attention_is_no_weight() -> None:
    """What was seen is what is foreseen at that size."""
    call = other("scaled_dot_product_attention")
    call = replace(call, weight=(1, 1, S // 1024, 512))
    learnt = learn(made(call, 1), [S, 2 * S, -2 * S, -S])
    assert Workspaces(learnt=learnt.shares).of(call) == 2 * S


def test_scratch_that_is_there_before_the_result_is_of_the_operator_that_makes_it() -> None:
    """A contiguous copy of the input, freed when the operator is done."""
    learnt = learn(made(other(), other("cat"), conv(), 2), [S, S, 3 * S, S, -3 * S, -S])
    assert share_of(learnt) == expected(3 * S)
    assert "cat" not in learnt.shares


def test_what_a_library_keeps_is_no_scratch() -> None:
    """A workspace made by the first product stays; operators after it need no more for it."""
    learnt = learn(RUN, [S, 5 * S, S, 2 * S, -2 * S, -S, S, -S, -S])
    assert learnt.kept == 5 * S
    assert share_of(learnt) == expected(2 * S)
    assert "silu" not in learnt.shares


def test_small_tensors_that_no_dry_run_knows_change_nothing() -> None:
    """Sums of an attention, states of a generator, means of a norm."""
    noise = [1024, 512, -512, -1024]
    learnt = learn(RUN, [S, *noise, S, 512, 2 * S, -2 * S, -512, -S, *noise, S, -S, -S])
    assert share_of(learnt) == expected(2 * S)
    assert learnt.matched == 1.0


def test_a_fused_operator_leaves_out_what_the_dry_run_made() -> None:
    """The share of what was made tells, and the convolution's scratch is found all the same."""
    norm = [other("_to_copy", 2 * S), other("pow", 2 * S), 3, other("mul", 2 * S), 2, 1]
    run = made(other(), *norm, other("_to_copy"), 4, conv(), 5, 6)
    learnt = learn(run, [S, S, -S, S, 3 * S, -3 * S, -S, -S])
    assert share_of(learnt) == expected(3 * S)
    assert learnt.matched == pytest.approx(3 / 9)


def test_a_call_with_a_stride_does_not_speak_for_the_large_ones() -> None:
    """The same weights' shape, a quarter of the output: another share, and never the peak."""
    run = made(other(), conv(), 1, conv(S, S // 4), 2, 3)
    learnt = learn(run, [S, S, 2 * S, -2 * S, -S, S // 4, 2 * S, -2 * S, -S, -S // 4])
    assert share_of(learnt) == expected(2 * S)


def test_reordered_weights_are_counted_off() -> None:
    """They are most of the scratch of a small run, and do not grow with the picture."""
    weight = (1024, 1024, 3, 3)
    run = made(other(), conv(S, S, weight), 1, 2)
    reordered = 2 * 1024 * 1024 * 9
    scratch = 2 * S + 2 * reordered
    learnt = learn(run, [S, S, scratch, -scratch, -S, -S])
    assert learnt.shares["convolution 1024x1024x3x3"] == pytest.approx(
        scratch / (2 * S + reordered)
    )
    assert learnt.shares["convolution 1024x1024x3x3"] < 1.6


def test_a_cards_moves_add_up_to_what_it_holds() -> None:
    """Each change in order, from the start to the end."""
    card = open_card("virtual:16MiB")
    with card.moves() as moves:
        kept = torch.zeros(1024, device=card.device)
        gone = torch.zeros(2048, device=card.device)
        del gone
    assert list(moves) == [4096, 8192, -8192]
    assert sum(moves) == card.read().allocated
    del kept
