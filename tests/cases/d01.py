"""D01: everything that is done on a card, small, so that it can be done on the second of two."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import call, lora
from tests.pipelines import tiny
from tightfit.card import Card, open_card
from tightfit.run.job import Job, Request
from tightfit.testing import toy_vae
from tightfit.units import MIB
from tightfit.watch import Recorder

WIDTH, LAYERS = 256, 12


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval()


def _encode(card: Card) -> None:
    """A picture to a latent, by the library's own door."""
    result = tightfit.encode(torch.rand(1, 3, 64, 64) * 2 - 1, vae=toy_vae("V2"), card=card)
    assert result.value.latent.isfinite().all()


def _decode(card: Card) -> None:
    """And back."""
    result = tightfit.decode(torch.rand(1, 4, 16, 16), vae=toy_vae("V2"), card=card)
    assert result.value.pixels.isfinite().all()


def _fallback(card: Card) -> None:
    """What does not fit as a whole is tried, and done in another way."""
    size, budget = (64, 24 * MIB) if card.kind == "virtual" else (256, 700 * MIB)
    job = Job(toy_vae("V2"), "decode", card, Request(budget, estimate=False))
    outcome = job.run(torch.rand(1, 4, size, size))
    assert [each.outcome for each in outcome.attempts][-1] == "ok"
    assert "oom" in [each.outcome for each in outcome.attempts]


def _stream(card: Card) -> None:
    """Every weight is copied for each call; then other threads call, too."""
    module, x = _layers(), torch.randn(8, WIDTH)
    tightfit.fit(module, card=card, mode="none", example=(x,))
    with torch.no_grad():
        values = [module(x).cpu() for _ in range(3)]
    assert torch.equal(values[0], values[2])
    assert tightfit.fitted(module).session.residency.streamed
    tightfit.unfit(module)


def _pack(card: Card) -> None:
    """Packed weights are packed, and unpacked, there."""
    module, x = _layers().to(torch.bfloat16), torch.randn(8, WIDTH, dtype=torch.bfloat16)
    tightfit.fit(module, card=card, mode="none", pack="on")
    with torch.no_grad():
        module(x)
    tightfit.unfit(module)


def _trace(card: Card) -> None:
    """Every move and every step is written down."""
    module, recorder = _layers(), Recorder(fine=True)
    tightfit.fit(module, card=card, mode="none", traces=True)
    tightfit.fitted(module).recorder = recorder
    with torch.no_grad():
        module(torch.randn(8, WIDTH))
    steps = tightfit.fitted(module).session.steps
    tightfit.fitted(module).tell()
    assert steps
    assert recorder.counts
    tightfit.unfit(module)


def _lora(card: Card) -> None:
    """An adapter comes to a fitted pipeline, is fused, and goes."""
    pipe = tightfit.fit(tiny.flux(), card=card)
    before = call(pipe, "flux")
    pipe.load_lora_weights(lora())
    assert not torch.equal(call(pipe, "flux"), before)
    pipe.fuse_lora()
    assert not torch.equal(call(pipe, "flux"), before)
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    tightfit.unfit(pipe)


def _pipeline(card: Card) -> None:
    """Texts, steps and a picture, with idle networks out of the way."""
    with tightfit.Session(card=card) as session:
        pipe = session.fit(tiny.flux(), mode="none")
        assert call(pipe, "flux", output="pt").isfinite().all()
        session.free()


def _generate(card: Card) -> None:
    """As the command does it."""
    with tempfile.TemporaryDirectory() as folder:
        result = tightfit.generate(
            "random:sdxl-mini",
            prompt="a cat",
            out=Path(folder) / "a.png",
            width=64,
            height=64,
            steps=1,
            seed=1,
            card=card,
        )
    assert result.value[0].error is None


JOBS: dict[str, Callable[[Card], None]] = {
    "encode": _encode,
    "decode": _decode,
    "fallback": _fallback,
    "stream": _stream,
    "pack": _pack,
    "trace": _trace,
    "lora": _lora,
    "pipeline": _pipeline,
    "generate": _generate,
}


def on_the_second(name: str) -> None:
    """Do one on ``cuda:1``, in a process of its own, and see that ``cuda:0`` was left alone."""
    JOBS[name](open_card("cuda:1"))
    assert torch.cuda.memory_stats(0).get("reserved_bytes.all.peak", 0) == 0
    flags, active = ctypes.c_uint(), ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert not active.value, "the first card has a context"


if __name__ == "__main__":
    on_the_second(sys.argv[1])
