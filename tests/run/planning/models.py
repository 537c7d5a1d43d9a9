"""Made-up models whose needs are round numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.card.outlook import look
from tightfit.plan.size import Size
from tightfit.run.planning.gauge import Gauge, NoGauge, Working
from tightfit.run.planning.model import Model
from tightfit.run.planning.steps import Steps
from tightfit.units import MIB
from tightfit.weigh.blocks import Block, Leaf, Weights

PICTURES = Steps(8, None)
CLIPS = Steps(8, 4)
BARE = look("virtual:6GiB")
NATIVE = look("virtual:6GiB,allocator=native")


@dataclass(frozen=True)
class BytesPerSample:
    """Needs `each` bytes for every pixel of every frame of every item."""

    each: int = 100
    least: float | None = None

    def at(self, size: Size, *, allocator: str) -> Working:
        """A tenth of it more is scratch."""
        dry = self.each * size.samples * size.batch
        held = None if self.least is None or allocator == "exact" else int(dry * self.least)
        return Working(dry=dry, allocated=dry + dry // 10, least=held, flops=float(dry))


def weights(blocks: int = 4, each: int = 10 * MIB) -> Weights:
    """Blocks of two modules."""
    return Weights(
        "made-up",
        tuple(
            Block(
                f"blocks.{at}",
                (
                    Leaf(f"blocks.{at}.a", each // 2, 0, each // 2, each // 4),
                    Leaf(f"blocks.{at}.b", each // 2, 0, each // 2, each // 4),
                ),
            )
            for at in range(blocks)
        ),
        "keys",
    )


def denoiser(
    *, name: str = "made-up/transformer", gauge: Gauge | None = None, steps: Steps = PICTURES
) -> Model:
    """Of pictures, unless `steps` say otherwise."""
    return Model(name, "denoise", weights(), gauge or BytesPerSample(), calls=28, steps=steps)


def decoder(
    *, steps: Steps = PICTURES, gauge: Gauge | None = None, dtype: str = "float16"
) -> Model:
    """An autoencoder that decodes."""
    return Model(
        "made-up-vae",
        "decode",
        weights(1),
        gauge or BytesPerSample(),
        tiles=True,
        steps=steps,
        dtype=dtype,
    )


def unknown() -> Model:
    """Of which only the weights are known."""
    return Model("strange", "run", weights(), NoGauge())
