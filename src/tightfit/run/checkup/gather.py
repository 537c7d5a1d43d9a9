"""Gathering a check-up: each part is asked by itself, and a broken one costs no other."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace

from tightfit import __version__
from tightfit.card import nvml
from tightfit.card.host_memory import read_host_memory
from tightfit.run.checkup.cache import look_at_cache
from tightfit.run.checkup.remedies import remedies
from tightfit.run.checkup.values import (
    Checkup,
    DriverCheck,
)
from tightfit.settings import Settings

LIBRARIES = (
    "diffusers",
    "transformers",
    "accelerate",
    "safetensors",
    "gguf",
    "huggingface-hub",
    "peft",
    "triton",
    "bitsandbytes",
    "torchao",
    "nvidia-ml-py",
    "numpy",
    "pillow",
    "av",
)


def check_up(card: str | None = None, *, tell: Callable[[str], None] | None = None) -> Checkup:
    """Look at this machine: some seconds, most of which PyTorch takes to load.

    Args:
        card: look at this one; None is every CUDA card, or the host where there is none.
        tell: told what is being looked at.

    Raises `UsageError` for a `card` that is none. Everything else that is missing or broken is a
    part of the answer.
    """
    say = tell or (lambda _: None)
    settings = Settings.from_environ()
    say("asking the driver")
    before = nvml.ask()
    memory = read_host_memory()
    say("loading PyTorch")
    torch = _look_at_torch()
    say("opening the cards and measuring their links")
    cards = _cards(card, torch, before, settings, memory)
    after = nvml.ask() if cards and before.devices else before
    say("measuring memory and disk")
    found = Checkup(
        tightfit=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch,
        driver=DriverCheck(before.driver, _dotted(before.cuda_driver), before.problem),
        visible_devices=settings.visible_devices,
        device_order=settings.device_order,
        devices=tuple(_device(each, cards) for each in after.devices),
        cards=cards,
        host=_host(memory),
        disk=_disk(settings),
        cache=look_at_cache(settings.cache_dir),
        libraries={name: _version(name) for name in LIBRARIES},
    )
    hidden = nvml.visible(before.devices, settings.visible_devices, order=settings.device_order)
    return replace(found, advice=remedies(found, all_hidden=hidden == ()))
