"""Round figures along an axis."""

from __future__ import annotations

import math

from tightfit.units import format_bytes

_STEPS_OF_TIME = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600)


def byte_ticks(top: int, *, most: int = 6) -> list[tuple[int, str]]:
    """Powers of two apart, from 0 to `top`, with their words."""
    step = 1 << max(0, math.ceil(math.log2(max(1, top / most))))
    return [(value, _words(value)) for value in range(0, top + 1, step)]


def time_ticks(start: float, stop: float, *, most: int = 8) -> list[tuple[float, str]]:
    """Round seconds in [start, stop], with their words."""
    wanted = (stop - start) / most
    if wanted > 1:
        step = next((each for each in _STEPS_OF_TIME if each >= wanted), 86400)
        digits = 0
    else:
        power = 10 ** math.floor(math.log10(wanted))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= wanted * 0.999)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(start / step - 1e-9)
    count = int((stop - first * step) / step + 1e-9) + 1
    return [
        ((first + number) * step, f"{(first + number) * step:.{digits}f} s")
        for number in range(min(count, 4 * most))
    ]


def _words(value: int) -> str:
    return format_bytes(value).replace(".0 ", " ")
