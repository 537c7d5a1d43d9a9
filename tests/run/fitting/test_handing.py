"""What is handed over between cards."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import torch

from tightfit.card import open_card
from tightfit.run.fitting.handing import handed, to_host


def test_what_was_handed_over_goes_when_nobody_has_it_any_more() -> None:
    """At once, without a look for cycles; tensors that were one are one, also within objects."""
    one, two = open_card("virtual:1GiB"), open_card("virtual:1GiB")
    gc.collect()
    gc.disable()
    try:
        there = torch.ones(64, device=one.device)
        given = {"a": there, "b": [there, 3], "c": SimpleNamespace(latent=there)}
        moved = handed(given, one.device, two.device)
        assert moved["a"] is moved["b"][0] is moved["c"].latent
        assert moved["a"].device == two.device
        assert given["c"].latent is there
        assert to_host(moved, two.device)["a"].device.type == "cpu"
        del moved
        assert two.read().allocated == 0
        del given, there
        assert one.read().allocated == 0
    finally:
        gc.enable()
