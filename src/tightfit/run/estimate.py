"""What a run of a VAE will need, before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from tightfit.allocators import ALIGNMENT, ASYNC_GRAIN, round_up
from tightfit.place import placed
from tightfit.plan.slack import FRAGMENTS, Moves, least_reserved, replay
from tightfit.run.ladder import Keepsakes
from tightfit.run.told import Told, told
from tightfit.run.vae import Direction, Vae
from tightfit.weigh import identity, weights
from tightfit.weigh.calibration import Calibration, Seen
from tightfit.weigh.dry import dry_run
from tightfit.weigh.workspace import NONE, Workspaces, peak_of, sequence


@dataclass(frozen=True)
class Estimate:
    """Bytes in tensors beyond weights and input: ``fixed + slope × samples`` of one item.

    Attributes:
        fixed_bytes: what does not grow with the size.
        slope: bytes per sample (pixel × frame).
        peak_bytes: in tensors, for the whole input of this job, weights and input included.
        source: how it was found.
    """

    fixed_bytes: int | None
    slope: float | None
    peak_bytes: int | None
    source: str


@dataclass
class Estimator:
    """Dry runs of one VAE in one direction, remembered by shape and corrected by real runs.

    Attributes:
        factor: what is kept free above the prediction, for what is not known.
        allocator: whose fragments count too: what it gets by with, found by a replay.
        grain: the step of ``async``.
        workspaces: the scratch inside operators that the device is known to need.
        calibration: what real runs measured.
        missed: a try that was predicted to fit did not.
    """

    vae: Vae
    direction: Direction
    factor: float
    allocator: str = "exact"
    grain: int = ASYNC_GRAIN
    workspaces: Workspaces = NONE
    calibration: Calibration = field(default_factory=Calibration)
    missed: bool = False
    _known: dict[tuple[int, ...], Told | None] = field(default_factory=dict)

    def need(self, shape: tuple[int, ...]) -> int | None:
        """Bytes that must be free for a call on a contiguous source of `shape`, beyond it.

        `shape` is [B,C,…] of the source. None is unknown: networks whose code depends on values
        cannot be told.
        """
        known = self._dry(shape)
        if known is None:
            return None
        likely = self.calibration.corrected(known.bytes)
        return max(int(likely * self.factor) + 2**16, likely + known.fragments)

    def likely(self, shape: tuple[int, ...]) -> int | None:
        """Bytes in tensors at the peak of a call on a source of `shape`, beyond it."""
        known = self._dry(shape)
        return None if known is None else self.calibration.corrected(known.bytes)

    def held(self, source: int) -> int:
        """Bytes of weights and a source of so many, in blocks of 512."""
        return sum(round_up(size, ALIGNMENT) for size in (*self._weights(), source))

    def learn(self, shape: tuple[int, ...], measured: int | None, *, held: bool) -> None:
        """A real call on a source of `shape` needed `measured` bytes beyond it, or did not hold.

        A try that was stopped shows no peak, only that the prediction was wrong.
        """
        known = self._dry(shape)
        if known is None or not held:
            self.missed = known is not None
        elif measured is not None and measured > 0 and known.bytes > 0:
            run = Seen(math.prod(shape), known.bytes, measured)
            self.calibration = self.calibration.with_run(run)
            self.missed = False

    def smallest_known(self) -> tuple[int, ...] | None:
        """Of the shapes of one item that could be told, the smallest; None if there is but one."""
        told = [shape for shape, size in self._known.items() if size is not None and shape[0] == 1]
        return min(told, key=math.prod) if len(told) > 1 else None

    def line(
        self,
        small: tuple[int, ...],
        large: tuple[int, ...],
        size_of: Callable[[tuple[int, ...]], int | None],
    ) -> tuple[int, float] | tuple[None, None]:
        """Fixed bytes and slope through `size_of` (`need`, `likely`) of two shapes."""
        one, two = size_of(small), size_of(large)
        sizes = [torch.Size(shape[2:]).numel() for shape in (small, large)]
        if one is None or two is None or sizes[0] == sizes[1]:
            return None, None
        slope = (two - one) / (sizes[1] - sizes[0])
        return max(0, int(one - slope * sizes[0])), slope

    def _dry(self, shape: tuple[int, ...]) -> Told | None:
        """What a dry run tells; remembered."""
        if shape not in self._known:
            asked = (
                self.direction,
                getattr(self.vae.call(self.direction), "__name__", ""),
                shape,
                self.vae.dtype,
                self.allocator,
                self.grain,
                self.workspaces.told,
            )
            self._known[shape] = told(self.vae.module, asked, lambda: self._run(shape))
        return self._known[shape]

    def _run(self, shape: tuple[int, ...]) -> Told | None:
        call: Callable[[torch.Tensor], torch.Tensor] = self.vae.call(self.direction)
        keepsakes = Keepsakes(self.vae.module, device=torch.device("meta"))
        try:
            with placed(self.vae.module, "meta"):
                source = torch.empty(shape, dtype=self.vae.dtype, device="meta")
                run = dry_run(lambda: call(source))
        except Exception:  # whatever it is: if it is not about values, the real run raises it
            return None
        finally:
            with suppress(Exception):  # its own way may fail; by name never does
                self.vae.reset()
            keepsakes.drop()
        return self._replayed(sequence(run, self.workspaces), source.nbytes)

    def _replayed(self, moves: Moves, source: int) -> Told:
        """The moves in blocks of the allocator, beside weights and a source of so many bytes."""
        if self.allocator not in FRAGMENTS:
            return Told(peak_of((key, round_up(size, ALIGNMENT)) for key, size in moves), 0)
        there = [*self._weights(), source]
        before = replay((), self.allocator, held=there, grain=self.grain)
        free = replay(moves, self.allocator, held=there, grain=self.grain)
        least = least_reserved(moves, self.allocator, held=there, grain=self.grain)
        return Told(free.allocated - before.allocated, max(0, least - free.allocated))

    def _weights(self) -> list[int]:
        """Bytes of each tensor that lies on the card meanwhile, ties once."""
        return list(
            {identity(one.tensor): one.tensor.nbytes for one in weights(self.vae.module)}.values()
        )
