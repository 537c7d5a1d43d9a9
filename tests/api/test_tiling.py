"""`tiled`: any network of convolutions gives its whole result, in tiles."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightfit
from tests.clips import photograph
from tests.waifu2x import upconv7
from tightfit.api.tiling import Tiled
from tightfit.card import open_card
from tightfit.errors import MemoryShortage, UsageError


def frozen(module: nn.Module) -> nn.Module:
    """For inference."""
    return module.eval().requires_grad_(False)


def upscaler() -> nn.Module:
    """Two-fold, padded."""
    return frozen(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 3, 5, padding=2),
        )
    )


class Hourglass(nn.Module):
    """Down and up again by 4, with a skip: cut anywhere but at multiples of 4, it is another."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 2, 1)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(6, 6, 4, 2, 1), nn.ConvTranspose2d(6, 2, 4, 2, 1)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = functional.silu(self.down[0](x))
        low = low + functional.silu(self.up[0](functional.silu(self.down[1](low))))
        result: torch.Tensor = x + self.up[1](low)
        return result


CASES = {
    "upscaler": (upscaler, (2, 3, 70, 90), "32"),
    "nothing padded": (
        lambda: frozen(nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Conv2d(4, 1, 3))),
        (1, 1, 61, 83),
        "24x32",
    ),
    "smaller": (
        lambda: frozen(
            nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.SiLU(), nn.Conv2d(4, 1, 3, 2, 1))
        ),
        (1, 3, 96, 128),
        "48",
    ),
    "hourglass": (lambda: frozen(Hourglass()), (1, 2, 96, 128), "64"),
    "sound": (
        lambda: frozen(
            nn.Sequential(nn.Conv1d(2, 8, 9, padding=4), nn.Tanh(), nn.ConvTranspose1d(8, 2, 4, 4))
        ),
        (1, 2, 5000),
        "600",
    ),
    "clip": (
        lambda: frozen(nn.Conv3d(3, 3, 3, padding=1)),
        (1, 3, 9, 40, 50),
        "5x16x24",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_tiles_are_the_whole(name: str) -> None:
    """Larger, smaller, cut at the borders, strided; one, two or three axes; a batch."""
    make, sizes, tile = CASES[name]
    module, source = make(), torch.randn(sizes)
    run = tightfit.tiled(module, tile=tile, card="virtual:256MiB")
    result = run(source)
    torch.testing.assert_close(result, module(source), rtol=0, atol=1e-5)
    assert run.outcome is not None
    assert run.outcome.exact
    assert run.outcome.attempt.rung.startswith("tiles ")
    assert run.outcome.after_bytes == 0


@pytest.mark.parametrize(
    ("name", "step", "halo"),
    [
        ("upscaler", 1, 2),  # one pixel, and two at twice the size
        ("nothing padded", 1, 3),
        ("hourglass", 4, 6),  # three steps that neighbours share
        ("sound", 1, 4),
        ("clip", 1, 1),
    ],
)
def test_the_halo_is_measured(name: str, step: int, halo: int) -> None:
    """In positions of the source, and the step that strides leave."""
    make, sizes, _ = CASES[name]
    shape = tightfit.tiled(make(), card="cpu").shape(sizes[1], len(sizes) - 2)
    assert (shape.step, shape.halo) == (step, halo)


def test_what_does_not_fit_whole_is_parted_and_what_does_is_not() -> None:
    """The budget decides, and it is never exceeded."""
    module, source = upscaler(), torch.randn(1, 3, 128, 128)
    roomy, tight = (
        tightfit.tiled(module, card=open_card("virtual:64MiB"), vram=vram)
        for vram in ("64MiB", "3MiB")
    )
    expected = module(source)
    for run in (roomy, tight):
        torch.testing.assert_close(run(source), expected, rtol=0, atol=1e-5)
    assert roomy.outcome is not None
    assert tight.outcome is not None
    assert roomy.outcome.attempt.rung == "whole"
    assert tight.outcome.attempt.rung != "whole"
    assert (tight.outcome.peak_reserved_bytes or 0) <= 3 * 2**20


def test_what_is_measured_is_measured_once() -> None:
    """For inputs of the same kind."""
    calls: list[tuple[int, ...]] = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "cpu":
                calls.append(tuple(x.shape))
            result: torch.Tensor = self.layer(x)
            return result

    run = tightfit.tiled(frozen(Counting()), card="virtual:64MiB")
    run(torch.rand(1, 1, 20, 30))
    count = len(calls)
    assert count > 0
    run(torch.rand(3, 1, 40, 50))
    assert len(calls) == count


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 4)),
        nn.AdaptiveAvgPool2d(4),
    ],
    ids=["norm", "no convolution", "pooled"],
)
def test_what_cannot_be_put_together_from_tiles_is_refused(module: nn.Module) -> None:
    """Before anything runs, and why."""
    with pytest.raises(UsageError, match="cannot be run in tiles"):
        tightfit.tiled(frozen(module), card="virtual:64MiB")(torch.rand(1, 4, 64, 64))


@pytest.mark.parametrize(
    ("tile", "source", "says"),
    [
        ("64", (1, 2, 97, 128), "takes a height of a multiple of 4, not 97"),
        ("64", (2, 96), "is given"),
        ("64", (1, 2, 0, 128), "is given"),
    ],
)
def test_what_has_no_tiles_is_refused_by_name(
    tile: str, source: tuple[int, ...], says: str
) -> None:
    """Sizes between two strides, tiles that are all overlap, no axes at all."""
    run: Tiled = tightfit.tiled(frozen(Hourglass()), tile=tile, card="virtual:64MiB")
    with pytest.raises(UsageError, match=says):
        run(torch.rand(source))


@pytest.mark.parametrize("tile", ["16", "64x20"])
def test_a_tile_that_is_all_overlap_is_refused_with_the_least(tile: str) -> None:
    """Two layers of nine reach eight pixels, so that neighbours share sixteen."""
    layers = frozen(nn.Sequential(*(nn.Conv2d(1, 1, 9, padding=4) for _ in range(2))))
    run = tightfit.tiled(layers, tile=tile, card="virtual:64MiB")
    with pytest.raises(
        UsageError, match="too small for `Sequential`, whose tiles share 16: use 22"
    ):
        run(torch.rand(1, 1, 96, 96))
    least, source = tightfit.tiled(layers, tile=22, card="cpu"), torch.rand(1, 1, 96, 96)
    torch.testing.assert_close(least(source), layers(source), rtol=0, atol=1e-5)


def test_too_little_memory_for_any_tile_is_said() -> None:
    """With the figures, and the card is as it was."""
    card = open_card("virtual:64MiB")
    run = tightfit.tiled(upscaler(), card=card, vram="3KiB")
    with pytest.raises(MemoryShortage):
        run(torch.rand(1, 3, 128, 128))
    assert card.read().allocated == 0


def test_real_weights_are_exact_from_seven_pixels_of_context_on() -> None:
    """waifu2x's upconv7: tiles share fourteen pixels, seven for each; with six they differ."""
    module = upconv7()
    picture = photograph()[None, :, :160, :200]
    run = tightfit.tiled(module, tile="96", card="virtual:1GiB")
    assert run.shape(3, 2).halo == 7
    result = run(picture)
    whole = module(picture)
    assert result.shape == whole.shape == (1, 3, 292, 372)
    torch.testing.assert_close(result, whole, rtol=0, atol=1e-6)
    assert run.outcome is not None
    assert run.outcome.attempt.tile == (96, 96)


@pytest.mark.parametrize(("context", "exact"), [(0, False), (6, False), (7, True), (9, True)])
def test_real_weights_need_the_context_that_is_measured(context: int, exact: bool) -> None:
    """A patch with so many real pixels around it, the rest repeated, against the whole picture."""
    module = upconv7()
    picture = photograph()[None, :, :96, :96]
    whole = module(functional.pad(picture, (7, 7, 7, 7), mode="replicate"))
    kept = picture[..., 48 - context :, 48 - context :]
    part = module(functional.pad(kept, (7, 7, 7, 7), mode="replicate"))[
        ..., 2 * context :, 2 * context :
    ]
    off = (part - whole[..., 96:, 96:]).abs().max().item()
    assert (off <= 1e-6) == exact
