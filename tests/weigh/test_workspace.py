"""Scratch inside operators: the table, what was learnt, and where it lies in a run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightfit.weigh.dry import Call, DryRun, Step, dry_run
from tightfit.weigh.workspace import CUDA, NONE, Workspaces, peak_of, sequence, signature


def _run(net: nn.Module, shape: tuple[int, ...]):
    net.to("meta", torch.bfloat16).requires_grad_(False)
    source = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return dry_run(lambda: net(source))


def test_a_convolution_takes_input_output_and_weights_once_more() -> None:
    """Measured: 256 to 128 channels at 1024x1024, 1,281 MiB with 256 of an earlier result held."""
    run = _run(nn.Conv2d(256, 128, 3, padding=1, bias=False), (1, 256, 1024, 1024))
    over_input = peak_of(sequence(run, CUDA))
    assert over_input + 256 * 2**20 == pytest.approx(1281 * 2**20, rel=0.001)


def test_pointwise_convolutions_and_2d_ones_of_few_channels_take_nothing() -> None:
    """So they were seen in small runs of eight VAEs and the network of SDXL."""
    sizes = {"reads": 100, "writes": 300, "after": 1}
    for weight in ((8, 16, 1, 1), (8, 16, 1, 1, 1), (128, 3, 3, 3), (320, 4, 3, 3)):
        assert CUDA.of(Call("convolution", weight, **sizes)) == 0
    for weight in ((512, 16, 3, 3), (96, 3, 3, 3, 3), (16, 16, 3, 1, 1)):
        assert CUDA.of(Call("convolution", weight, **sizes)) > 400


def test_a_copy_of_the_input_is_there_before_the_result() -> None:
    """A pointwise convolution that was seen to take some: of an input that is not contiguous."""
    call = Call("convolution", (8, 8, 1, 1), reads=64, writes=64, after=2)
    run = DryRun(0, "", (Step(1, 32), Step(2, 64)), (call,), 0)
    moves = sequence(run, Workspaces(learnt={signature(call): 0.25}))
    assert moves == ((1, 32), (-1, 64), (2, 64), (-1, 0))


def test_without_workspaces_a_sequence_is_the_dry_run() -> None:
    """And its peak is the dry peak."""
    run = _run(nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3)), (1, 4, 32, 32))
    assert sequence(run, NONE) == run.steps
    assert peak_of(run.steps) == run.peak


def test_scratch_comes_after_the_result_and_goes_before_the_next_operator() -> None:
    """Each allocation has one end, and the scratch's is the very next move."""
    run = _run(nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 3)), (1, 8, 32, 32))
    moves = sequence(run, CUDA)
    scratch = [at for at, (key, size) in enumerate(moves) if key < 0 and size]
    assert len(scratch) == 2
    assert all(moves[at + 1] == (moves[at][0], 0) for at in scratch)
    assert moves[scratch[0] - 1][1] == run.calls[0].writes


def test_what_was_learnt_comes_before_the_table() -> None:
    """By signature, in proportion to what the operator reads and writes, weights of 2 bytes too."""
    call = Call("convolution", (5, 10, 1, 2), reads=100, writes=300, after=1)
    assert CUDA.of(call) == 600
    assert Workspaces(table=True, learnt={signature(call): 0.25}).of(call) == 150
    assert NONE.of(call) == 0


def test_wide_heads_keep_their_sums_in_an_fp32_copy() -> None:
    """The one head of a picture VAE has 512 channels; a transformer's have 64 or 128."""
    shape = {"reads": 2**20, "writes": 2**20, "after": 1}
    assert CUDA.of(Call("scaled_dot_product_attention", (1, 1, 99, 512), **shape)) == 2**21
    assert CUDA.of(Call("scaled_dot_product_attention", (1, 24, 99, 128), **shape)) == 0


def test_operators_that_go_element_by_element_take_none() -> None:
    """Whatever a table of learnt shares says of them."""
    call = Call("mul", (4, 4), reads=100, writes=100, after=1)
    assert signature(call) == ""
    assert Workspaces(table=True, learnt={"": 9.0, "mul": 9.0}).of(call) == 0
