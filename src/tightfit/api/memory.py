"""The memory options, parsed and refused early."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tightfit.card import Card, open_card
from tightfit.errors import UsageError
from tightfit.plan.budget import BudgetWish
from tightfit.plan.streaming.residency import MODES
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.settings import ALLOCATORS


@dataclass(frozen=True)
class Memory:
    """How much of which card may be used, and how; sizes in bytes.

    Attributes:
        card: opened.
        budget: what may be used of it.
        reserve: kept free for others.
        wish: about tiles.
        estimate: whether the planner is asked before each rung.
        allow_cpu: whether the host may do what the card cannot.
        mode: where weights live; those of a VAE stay on the card in every mode but ``none``.
    """

    card: Card
    budget: int
    reserve: int
    wish: TileWish
    estimate: bool = True
    allow_cpu: bool = False
    mode: str = "auto"


def open_memory(
    *,
    card: str | Card | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    allocator: str | None = None,
    tile: str = "auto",
    overlap: str | None = None,
    estimate: bool = True,
    allow_cpu: bool = False,
) -> Memory:
    """Parse everything, then open the card. Raises `UsageError` on what cannot be meant.

    Sizes are bytes as integers, or text such as ``6GiB``, ``80%``, ``-1GiB``.
    """
    wish = parse_tile(tile, overlap)
    asked = BudgetWish.of(vram, reserve)
    if mode not in MODES:
        raise UsageError(f"--vram-mode `{mode}` is unknown: use {', '.join(MODES)}.")
    if mode == "none":
        raise UsageError(
            "--vram-mode `none` streams every weight, and those of a VAE stay on the card here: "
            "use auto, high or low."
        )
    opened = card if isinstance(card, Card) else open_card(card)
    _check_allocator(opened, allocator)
    total = opened.read().total
    amount = asked.on(opened.name, total)
    return Memory(opened, amount.budget, amount.reserve, wish, estimate, allow_cpu, mode)


def choose_dtype(
    asked: torch.dtype | None, *, stored: torch.dtype, upcast: bool, card: Card
) -> tuple[torch.dtype, str | None]:
    """The dtype to compute in, and what to say if it is not the stored one.

    Room never decides this. `upcast`: the model's configuration says that float16 overflows.
    Raises `UsageError` where the card does not compute in the dtype asked for.
    """
    if asked is not None:
        if not card.supports(asked):
            raise UsageError(f"--dtype {_name(asked)}: {card.name} does not compute in it.")
        return asked, None
    if not card.supports(stored):
        return torch.float32, f"{_name(stored)} weights run in float32: {card.name} has none"
    if stored == torch.float16 and upcast:
        return torch.float32, "float16 weights run in float32: this VAE overflows in float16"
    if card.kind == "cpu" and stored in (torch.float16, torch.bfloat16):
        return torch.float32, f"{_name(stored)} weights run in float32 on the CPU, which is faster"
    return stored, None


def _check_allocator(card: Card, asked: str | None) -> None:
    """An allocator cannot be changed once it runs; say so rather than run with another."""
    if asked is None:
        return
    if asked not in ALLOCATORS:
        raise UsageError(f"--allocator `{asked}` is unknown: use {', '.join(ALLOCATORS)}.")
    if card.kind == "cpu":
        raise UsageError("--allocator says how a card's memory is managed; the CPU has none.")
    if card.allocator != asked:
        how = (
            f"write {card.name},allocator={asked}"
            if card.kind == "virtual"
            else "set it before PyTorch starts, with PYTORCH_CUDA_ALLOC_CONF"
        )
        raise UsageError(f"--allocator {asked}: {card.name} runs with {card.allocator}; {how}.")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
