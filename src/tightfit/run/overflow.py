"""Pieces of a VAE's work, with a way out for those that are too large for half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tightfit.place import placed
from tightfit.plan.tiles import Span
from tightfit.run.pieces import Call, Pieces
from tightfit.run.vae import Direction, Vae

_HALF = (torch.float16, torch.bfloat16)
_AXES = {1: ("samples",), 2: ("rows", "columns"), 3: ("frames", "rows", "columns")}


def pieces_of(
    vae: Vae,
    direction: Direction,
    call: Call,
    device: torch.device,
    *,
    before_call: Callable[[], None],
    after_call: Callable[[], None],
    say: Callable[[str], None],
) -> Pieces:
    """How pieces are run on `device`, where the weights of `vae` are, by its `call`.

    In half precision, one whose result is not finite is run again in float32, and `say` is told
    which. Room never decides on that: where it is too little, smaller tiles are tried.
    """
    onward, steps = vae.onward, vae.steps

    def redone(where: tuple[Span, ...], dtype: torch.dtype, helped: bool) -> None:
        say(redone_in(where, vae.dtype, dtype, helped=helped))

    return Pieces(
        call,
        device,
        vae.traits.name,
        before_call,
        after_call,
        wider=(lambda: widened(vae, device)) if is_half(vae.dtype) else None,
        redone=redone,
        onward=None if onward is None else lambda piece, begins: onward(direction, piece, begins),
        done=vae.reset,
        steps=None if steps is None else lambda tell: steps(direction, tell),
    )


def is_half(dtype: torch.dtype) -> bool:
    """Whether there is a wider one to go to."""
    return dtype in _HALF


@contextmanager
def widened(vae: Vae, device: torch.device) -> Iterator[torch.dtype]:
    """While inside, the weights of `vae` on `device` are float32."""
    vae.reset()
    with placed(vae.module, device, dtype=torch.float32):
        yield torch.float32
    vae.reset()


def redone_in(
    where: tuple[Span, ...], usual: torch.dtype, wide: torch.dtype, *, helped: bool
) -> str:
    """What is said of a part of the result that was run again."""
    place = ", ".join(
        f"{name} {span.start} to {span.stop - 1}"
        for name, span in zip(_AXES[len(where)], where, strict=True)
    )
    before, after = (str(each).removeprefix("torch.") for each in (usual, wide))
    also = "" if helped else ", which did not help"
    return f"{place} of the result came out not finite in {before}: redone in {after}{also}"
