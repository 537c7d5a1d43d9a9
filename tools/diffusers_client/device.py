"""A virtual card as the device that diffusers' tests run on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from tightfit.card import Card, open_card


class _Generators(type):
    """`torch.Generator`; for a virtual card its numbers are drawn on the host."""

    def __call__(cls, device: Any = "cpu") -> Any:
        on_host = torch.device(device).type == "vcard"
        return _TRUE("cpu" if on_host else device)

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _TRUE)


_TRUE = torch.Generator


class Generator(metaclass=_Generators):
    """Makes true ones."""


@contextmanager
def on_a_virtual_card(size: str = "64GiB") -> Iterator[Card]:
    """While inside, ``vcard`` is their device; the card is held, so that it has the name ``:0``."""
    card = open_card(f"virtual:{size}")
    with (
        patch.dict(os.environ, {"DIFFUSERS_TEST_DEVICE": "vcard", "HF_HUB_OFFLINE": "1"}),
        patch.object(torch, "Generator", Generator),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield card
