"""Weights of every kind that was thought of, as flat bf16, from a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch

Make = Callable[[int, torch.Generator], torch.Tensor]


def of_bits(words: torch.Tensor) -> torch.Tensor:
    """bf16 of the lowest 16 bits."""
    return words.to(torch.int16).view(torch.bfloat16)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, so that NaN is what it was."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def gaussian(count: int, draw: torch.Generator) -> torch.Tensor:
    """As most weights are."""
    return (torch.randn(count, generator=draw) * 0.02).to(torch.bfloat16)


def _uniform(count: int, draw: torch.Generator) -> torch.Tensor:
    return ((torch.rand(count, generator=draw) - 0.5) / 16).to(torch.bfloat16)


def _scaled_rows(count: int, draw: torch.Generator) -> torch.Tensor:
    rows = torch.rand(count // 64 + 1, 1, generator=draw) ** 4
    return gaussian(64 * len(rows), draw).mul(rows.expand(-1, 64).reshape(-1))[:count].bfloat16()


def _with(share: float, bits: Callable[[int, torch.Generator], torch.Tensor]) -> Make:
    """Gaussian, of which about `share` are replaced."""

    def make(count: int, draw: torch.Generator) -> torch.Tensor:
        values = gaussian(count, draw)
        where = torch.rand(count, generator=draw) < share
        values[where] = of_bits(bits(int(where.sum()), draw))
        return values

    return make


def _one_a_tile(bits: int) -> Make:
    def make(count: int, draw: torch.Generator) -> torch.Tensor:
        values = gaussian(count, draw)
        values[int(torch.randint(4096, (1,), generator=draw)) :: 8192] = of_bits(torch.tensor(bits))
        return values

    return make


def _integers(low: int, high: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    return lambda count, draw: torch.randint(low, high, (count,), generator=draw)


def _zero_rows_and_columns(count: int, draw: torch.Generator) -> torch.Tensor:
    values = gaussian(-(-count // 96) * 96, draw).view(-1, 96)
    values[::5] = 0
    values[:, ::16] = 0
    return values.view(-1)[:count].clone()


def _constant(count: int, draw: torch.Generator) -> torch.Tensor:
    return of_bits(_integers(0, 65536)(1, draw)).repeat(count)


def _all_exponents(count: int, draw: torch.Generator) -> torch.Tensor:
    return of_bits((torch.arange(count) % 256 << 7) | _integers(0, 128)(count, draw))


def _int8(count: int, draw: torch.Generator) -> torch.Tensor:
    return _integers(-128, 128)(count, draw).to(torch.bfloat16)


def _fp8(count: int, draw: torch.Generator) -> torch.Tensor:
    weights = torch.randn(count, generator=draw) * 20
    return weights.to(torch.float8_e4m3fn).to(torch.bfloat16)


def _fp8_codes(count: int, draw: torch.Generator) -> torch.Tensor:
    codes = _integers(0, 256)(count, draw).to(torch.uint8)
    return codes.view(torch.float8_e4m3fn).to(torch.bfloat16)


def _any_bits(count: int, draw: torch.Generator) -> torch.Tensor:
    return of_bits(_integers(0, 65536)(count, draw))


def _denormal(count: int, draw: torch.Generator) -> torch.Tensor:
    return of_bits(_integers(0, 128)(count, draw) | (_integers(0, 2)(count, draw) << 15))


PLAIN: dict[str, Make] = {
    "gaussian": gaussian,
    "uniform": _uniform,
    "a tenth zeros": _with(0.1, lambda count, _: torch.zeros(count)),
    "a tenth -0": _with(0.1, lambda count, _: torch.full((count,), 0x8000)),
    "a tenth denormals": _with(0.1, _integers(1, 128)),
    "an outlier in each tile": _one_a_tile(0x7F00),
    "an infinity in each tile": _one_a_tile(0xFF80),
    "a NaN with a payload in each tile": _one_a_tile(0x7FA5),
    "a tiny value in each tile": _one_a_tile(0x0080),
    "zero rows and columns": _zero_rows_and_columns,
    "int8": _int8,
    "fp8": _fp8,
    "zeros": lambda count, _: torch.zeros(count, dtype=torch.bfloat16),
    "denormals": _denormal,
    "one constant": _constant,
}
"""Kinds that 12 bits pack to three quarters."""
HOSTILE: dict[str, Make] = {
    "scaled rows": _scaled_rows,
    "all fp8": _fp8_codes,
    "all exponents": _all_exponents,
    "any bits": _any_bits,
    "a twentieth NaN with payloads": _with(0.05, _integers(0x7F81, 0x8000)),
    "a twentieth infinities": _with(0.05, lambda count, _: torch.full((count,), 0xFF80)),
    "half NaN": _with(0.5, _integers(0xFF81, 0x10000)),
    "a sixth outliers": _with(0.16, _integers(0x6000, 0x7000)),
}
"""Kinds that pack less well, or not at all."""
KINDS = {**PLAIN, **HOSTILE}


def mixed(count: int, seed: int, *, longest: int = 20_000) -> torch.Tensor:
    """`count` values: tensors of any kind and length, one behind the other."""
    draw, parts, left = torch.Generator().manual_seed(seed), [], count
    makers = list(KINDS.values())
    while left:
        length = min(int(torch.randint(1, longest, (1,), generator=draw)), left)
        kind = int(torch.randint(len(makers), (1,), generator=draw))
        parts.append(makers[kind](length, draw))
        left -= length
    return torch.cat(parts)
