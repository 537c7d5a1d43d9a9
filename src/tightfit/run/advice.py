"""What a user can change when memory is the reason."""

from __future__ import annotations

from tightfit.card import Reading
from tightfit.plan.tilesize import TileWish


def advice(
    reading: Reading, *, budget: int, reserve: int, wish: TileWish, may_try_cpu: bool
) -> str:
    """What would help, and only what can: one phrase per thing, the likeliest first.

    Args:
        reading: of the card, for its total and what others hold.
        budget, reserve, wish: what was asked for.
        may_try_cpu: whether the host could do it and was not allowed to.
    """
    ways = ["a larger --vram" if budget < reading.total else "a larger card (--vram is all of it)"]
    if reserve:
        ways.append("a smaller --reserve-vram")
    ways.append("a smaller or shorter input")
    if wish.mode == "off":
        ways.append("tiles instead of --tile off")
    elif wish.mode == "size":
        ways.append("--tile auto")
    if may_try_cpu:
        ways.append("--allow-cpu")
    if reading.held_by_others:
        ways.append("close other programs that hold memory on the card")
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"
