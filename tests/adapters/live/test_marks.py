"""Where a pipeline's call is: steps and codings are told, and nothing stays of that."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from tests.pipelines import tiny
from tightfit.adapters.live.marks import marked

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_steps_and_codings_are_told_in_order_and_nothing_stays() -> None:
    """A decode is told before it begins, with the raw latent; afterwards all is as it was."""
    pipe = tiny.sdxl()
    before = set(vars(pipe.scheduler)), set(vars(pipe.vae))
    told: list[object] = []

    def code(direction: str, vae: nn.Module, source: torch.Tensor) -> None:
        assert vae is pipe.vae
        told.append((direction, tuple(source.shape)))

    with marked(pipe, on_step=lambda done, total: told.append((done, total)), on_code=code):
        pipe("a cat", width=32, height=32, num_inference_steps=2, output_type="pt")
    assert told == [(1, 2), (2, 2), ("decode", (1, 4, 16, 16))]
    assert "step" not in vars(pipe.scheduler)
    assert before[1] == set(vars(pipe.vae))


def test_what_raises_when_it_is_told_ends_the_call() -> None:
    """As a cancel does."""
    pipe = tiny.sdxl()

    def stop(done: int, total: int) -> None:
        raise InterruptedError(f"{done} of {total}")

    with (
        marked(pipe, on_step=stop, on_code=lambda *_: None),
        pytest.raises(InterruptedError, match="1 of 2"),
    ):
        pipe("a cat", width=32, height=32, num_inference_steps=2, output_type="pt")
    assert "step" not in vars(pipe.scheduler)


def test_a_scheduler_takes_what_it_took_and_a_copy_of_it_steps_by_itself() -> None:
    """Pipelines look at the signature of a step, and copy schedulers for what goes beside."""
    pipe = tiny.flux()
    taken = set(inspect.signature(pipe.scheduler.step).parameters)
    told: list[int] = []
    with marked(pipe, on_step=lambda done, _: told.append(done), on_code=lambda *_: None):
        assert set(inspect.signature(pipe.scheduler.step).parameters) == taken
        twin = copy.deepcopy(pipe.scheduler)
        twin.set_timesteps(2)
        twin.step(torch.zeros(1), twin.timesteps[0], torch.zeros(1))
    assert twin.step_index == 1
    assert pipe.scheduler.step_index is None
    assert told == []
