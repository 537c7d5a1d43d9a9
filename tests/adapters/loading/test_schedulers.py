"""Schedulers by names, and the usual ones of the pipelines we know."""

from __future__ import annotations

import pytest
from diffusers import EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler

from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.loading.schedulers import (
    check_steps,
    exchanged,
    follows_flow,
    scheduler_class,
    usual_of,
    usual_scheduler,
)
from tightfit.errors import UsageError


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_has_a_usual_scheduler(name: str) -> None:
    """Of a class that is installed; only Stable Diffusion's predict noise."""
    assert follows_flow(usual_scheduler(name)) == (not name.startswith(("sdxl", "sd1.5")))


@pytest.mark.parametrize(
    ("name", "flow", "wanted"),
    [
        ("euler", False, "EulerDiscreteScheduler"),
        ("euler", True, "FlowMatchEulerDiscreteScheduler"),
        ("UniPC", True, "UniPCMultistepScheduler"),
        ("dpm++", False, "DPMSolverMultistepScheduler"),
        ("Euler A", False, "EulerAncestralDiscreteScheduler"),
        ("DDIMScheduler", False, "DDIMScheduler"),
        ("LMSDiscrete", False, "LMSDiscreteScheduler"),
    ],
)
def test_a_scheduler_is_known_by_its_class_and_by_a_short_name(
    name: str, flow: bool, wanted: str
) -> None:
    """Case, spaces and the word `Scheduler` do not matter."""
    assert scheduler_class(name, flow=flow).__name__ == wanted


def test_an_unknown_scheduler_is_refused_with_those_near_it() -> None:
    """A slip is told what was meant."""
    with pytest.raises(UsageError, match=r"`eulr` is unknown: near it are euler"):
        scheduler_class("eulr")
    with pytest.raises(UsageError, match="use one of euler, "):
        scheduler_class("zzzzzzzz")


def test_another_scheduler_keeps_the_configuration() -> None:
    """The noise of the old one is that of the new one; a flow stays a flow."""
    old = EulerDiscreteScheduler(beta_start=0.002, beta_schedule="scaled_linear")
    assert exchanged(old, "unipc").config["beta_start"] == 0.002
    flow = exchanged(FlowMatchEulerDiscreteScheduler(shift=5.0), "unipc")
    assert follows_flow(flow)
    assert flow.config["flow_shift"] == 5.0


def test_a_scheduler_that_cannot_follow_the_model_is_refused() -> None:
    """It would run, and make noise."""
    with pytest.raises(UsageError, match="was taught a flow"):
        exchanged(FlowMatchEulerDiscreteScheduler(), "ddim")
    with pytest.raises(UsageError, match="predict noise: use"):
        exchanged(EulerDiscreteScheduler(), "flow-euler")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["qwen-image", "ltx-video-mini", "flux.1-dev"])
@pytest.mark.parametrize("instead", [None, "unipc", "flow-heun"])
def test_one_step_is_refused_where_it_has_no_time(name: str, instead: str | None) -> None:
    """As diffusers computes it: exactly where the one time is NaN."""
    scheduler = usual_scheduler(name)
    if instead is not None:
        scheduler = exchanged(scheduler, instead)
    given = {} if instead == "flow-heun" else {"mu": 0.7}
    scheduler.set_timesteps(num_inference_steps=1, **given)
    if scheduler.sigmas.isnan().any():
        with pytest.raises(UsageError, match=r"--steps 1 is too few.*use 2 or more"):
            check_steps(1, *usual_of(name), instead=instead)
    else:
        check_steps(1, *usual_of(name), instead=instead)
    check_steps(2, *usual_of(name), instead=instead)
    check_steps(None, *usual_of(name), instead=instead)
