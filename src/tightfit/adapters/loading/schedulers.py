"""Schedulers: the usual one of each pipeline we know, and others by a name that people use."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tightfit.adapters.libraries import class_named, quiet
from tightfit.errors import UsageError

_FLOW = "FlowMatchEulerDiscreteScheduler"
_SCALED = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}
_DYNAMIC = {
    "use_dynamic_shifting": True,
    "shift": 3.0,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}
_UNIPC = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
_USUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "flux.1-dev": (_FLOW, _DYNAMIC),
    "flux.1-schnell": (_FLOW, {"shift": 1.0}),
    "flux.2-dev": (_FLOW, _DYNAMIC),
    "flux.2-klein-4b": (_FLOW, _DYNAMIC),
    "flux.2-klein-9b": (_FLOW, _DYNAMIC),
    "wan2.1-t2v-1.3b": ("UniPCMultistepScheduler", {**_UNIPC, "flow_shift": 3.0}),
    "wan2.1-t2v-14b": ("UniPCMultistepScheduler", {**_UNIPC, "flow_shift": 3.0}),
    "wan2.1-i2v-14b": ("UniPCMultistepScheduler", {**_UNIPC, "flow_shift": 3.0}),
    "wan2.2-ti2v-5b": ("UniPCMultistepScheduler", {**_UNIPC, "flow_shift": 5.0}),
    "sdxl": ("EulerDiscreteScheduler", {**_SCALED, "timestep_spacing": "leading"}),
    "sd1.5": ("PNDMScheduler", {**_SCALED, "skip_prk_steps": True}),
    "qwen-image": (
        _FLOW,
        {
            **_DYNAMIC,
            "shift": 1.0,
            "max_shift": 0.9,
            "max_image_seq_len": 8192,
            "shift_terminal": 0.02,
        },
    ),
    "hunyuan-video": (_FLOW, {"shift": 7.0}),
    "ltx-video": (
        _FLOW,
        {
            **_DYNAMIC,
            "shift": 1.0,
            "base_shift": 0.95,
            "max_shift": 2.05,
            "base_image_seq_len": 1024,
            "shift_terminal": 0.1,
        },
    ),
    "z-image": (_FLOW, {"shift": 3.0}),
    "sd3.5-large": (_FLOW, {"shift": 3.0}),
}
_USUAL["ltx-video-13b"] = _USUAL["ltx-video"]

_SHORT = {
    "euler": "EulerDiscreteScheduler",
    "euler-a": "EulerAncestralDiscreteScheduler",
    "flow-euler": _FLOW,
    "flow-heun": "FlowMatchHeunDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "unipc": "UniPCMultistepScheduler",
    "dpm++": "DPMSolverMultistepScheduler",
    "dpm++-sde": "DPMSolverSDEScheduler",
    "dpm++-single": "DPMSolverSinglestepScheduler",
    "deis": "DEISMultistepScheduler",
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "lms": "LMSDiscreteScheduler",
    "lcm": "LCMScheduler",
    "pndm": "PNDMScheduler",
    "dpm2": "KDPM2DiscreteScheduler",
    "dpm2-a": "KDPM2AncestralDiscreteScheduler",
    "tcd": "TCDScheduler",
}


def usual_scheduler(name: str) -> Any:
    """That of the pipeline `name` of `PIPELINES`, as its makers publish it."""
    class_name, config = _USUAL[name.removesuffix("-mini")]
    return class_named("diffusers", class_name)(**config)


def scheduler_class(name: str, *, flow: bool = False) -> Any:
    """The class of diffusers that `name` means: its own name, or a short one such as ``unipc``.

    Of a pipeline that learnt a `flow`, ``euler`` and ``heun`` are those for flows. Raises
    `UsageError` with the names near it.
    """
    import diffusers

    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if flow and f"flow-{wanted}" in _SHORT:
        wanted = f"flow-{wanted}"
    class_name = _SHORT.get(wanted, name.strip())
    known = [each for each in dir(diffusers) if each.endswith("Scheduler")]
    by_lower = {each.lower(): each for each in known}
    found = by_lower.get(class_name.lower(), by_lower.get(f"{class_name.lower()}scheduler"))
    if found is not None:
        return class_named("diffusers", found)
    near = get_close_matches(wanted, [*_SHORT, *by_lower], n=4, cutoff=0.5)
    listed = ", ".join(by_lower.get(each, each) for each in near or _SHORT)
    said = "near it are" if near else "use one of"
    raise UsageError(f"Scheduler `{name}` is unknown: {said} {listed}.")


def exchanged(current: Any, name: str) -> Any:
    """The scheduler `name` with the configuration of `current`, as far as it has such values.

    Raises `UsageError` for a name that is unknown, and for one that cannot follow what the model
    predicts (a flow, or noise).
    """
    flow = follows_flow(current)
    cls = scheduler_class(name, flow=flow)
    config = dict(current.config)
    if flow and not cls.__name__.startswith("FlowMatch"):
        if "use_flow_sigmas" not in cls._get_init_keys(cls):
            raise UsageError(
                f"Scheduler `{name}` ({cls.__name__}) predicts noise, and this model was taught a "
                "flow: use flow-euler, flow-heun, unipc, dpm++ or deis."
            )
        config |= {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
        config.setdefault("flow_shift", config.get("shift", 1.0))
    if not flow and cls.__name__.startswith("FlowMatch"):
        raise UsageError(
            f"Scheduler `{name}` ({cls.__name__}) follows a flow, and this model was taught to "
            "predict noise: use euler, unipc, dpm++ or ddim."
        )
    with quiet():
        return cls.from_config(config)


def usual_of(name: str) -> tuple[str, Mapping[str, Any]]:
    """Class and configuration of the usual scheduler of the pipeline `name` of `PIPELINES`."""
    return _USUAL[name.removesuffix("-mini")]


def check_steps(
    steps: int | None, class_name: str, config: Mapping[str, Any], *, instead: str | None
) -> None:
    """Raise `UsageError` for one step by a scheduler that stretches its times to a last one.

    With one step the first time is the last, and diffusers divides by zero: latents become NaN.

    Args:
        steps: None is as many as the pipeline makes by default.
        class_name, config: the pipeline's own scheduler.
        instead: the name of another one that is set up as that.
    """
    last = config.get("shift_terminal")
    if steps != 1 or not last:
        return
    if instead is not None:
        class_name = scheduler_class(instead, flow=class_name.startswith("FlowMatch")).__name__
    cls = class_named("diffusers", class_name)
    if "shift_terminal" in cls._get_init_keys(cls):
        raise UsageError(
            f"--steps 1 is too few: the scheduler of this pipeline ({class_name}) stretches its "
            f"times to end at {last}, which takes two at least: use 2 or more."
        )


def follows_flow(scheduler: Any) -> bool:
    """Whether its model was taught a flow, and not noise."""
    named = type(scheduler).__name__.startswith("FlowMatch")
    return named or bool(scheduler.config.get("use_flow_sigmas", False))
