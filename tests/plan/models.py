"""Models and cards in numbers, for tests of the planner."""

from __future__ import annotations

from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.supply import Host, Supply
from tightfit.units import GIB, MIB, format_bytes

FLUX_BYTES = 11_901_408_320 * 2
_DOUBLE = (108, 108, *([18] * 8), *([72] * 4))
_SINGLE = (54, 18, 18, 18, 72, 90)


def gib(size: float) -> int:
    """So many GiB in bytes."""
    return int(size * GIB)


def linears(name: str, sizes: tuple[int, ...]) -> Unit:
    """A block of linear layers of so many MiB each."""
    parts = tuple(Unit(f"{name}.{at}", size * MIB) for at, size in enumerate(sizes))
    return Unit(name, sum(sizes) * MIB, parts=parts)


def flux_units() -> tuple[Unit, ...]:
    """FLUX.1-dev in bf16: 19 blocks of 648 MiB, 38 of 270, and the rest to 22.17 GiB."""
    blocks = [linears(f"transformer_blocks.{at}", _DOUBLE) for at in range(19)]
    blocks += [linears(f"single_transformer_blocks.{at}", _SINGLE) for at in range(38)]
    rest = FLUX_BYTES - sum(block.bytes for block in blocks)
    return (Unit("rest", rest, largest=36 * MIB), *blocks)


def flux_denoise(*, flops: float | None = None, activations: float = 0.46) -> Demand:
    """Its denoising at 1024x1024, 20 steps."""
    return Demand(
        "denoise",
        flux_units(),
        activations=Figure(gib(activations)),
        calls=20,
        flops=flops,
        what="denoise 1024x1024 with FLUX.1-dev",
    )


def flux_pipeline() -> tuple[Demand, ...]:
    """T5, the denoiser, and the VAE with its ladder of ways."""
    t5 = tuple(Unit(f"block.{at}", 370 * MIB, largest=80 * MIB) for at in range(24))
    encode = Demand("encode text", (*t5, Unit("shared", 251 * MIB)), Figure(gib(0.2)))
    ways = (
        Way("whole", Figure(gib(1.8))),
        Way("strips", Figure(gib(1.0)), host=Figure(gib(0.4))),
        Way("tiles of 512", Figure(gib(0.5)), exact=False),
    )
    decode = Demand("decode", (Unit("vae", 160 * MIB),), ways=ways, what="decode 1024x1024")
    return (encode, flux_denoise(flops=60e12), decode)


def card(
    budget: int,
    *,
    total: int | None = None,
    link: float | None = 25e9,
    compute: float | None = None,
    host: Host | None = None,
) -> Supply:
    """A card of `budget` bytes, or of `total`, with a tabulated link."""
    total = budget if total is None else total
    return Supply(
        f"virtual:{format_bytes(total).replace(' ', '')}",
        total,
        budget,
        link=Rate(link),
        compute=Rate(compute),
        host=host,
    )
