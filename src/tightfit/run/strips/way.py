"""The rungs on which a VAE runs in strips: exact, in as much of the card as there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from tightfit.card import Card
from tightfit.card.host_memory import read_host_memory
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.host_budget import host_room
from tightfit.place.strips.arena import HostArena
from tightfit.plan.strips.layout import Layout, Rates
from tightfit.run.ladder import Rung
from tightfit.run.strips.keeping import Lanes
from tightfit.run.strips.plans import Asked, Strips, strips_of
from tightfit.run.strips.runner import Runner
from tightfit.run.strips.scratch import scratch_of
from tightfit.run.vae import Direction, Vae
from tightfit.units import format_bytes
from tightfit.weigh import weights

NAME = "strips"
_SHARES = (0.92, 0.7, 0.5)
"""Of the room, one rung each: what a plan does not see takes the rest."""
_RATES = Rates(flops=100e12, link=25e9)
"""Only their ratio matters, to what is kept where: of a card of today on its usual link."""


class _Told(NamedTuple):
    layout: Layout | None
    least: int


@dataclass
class StripWays:
    """Ways to code `source` with `vae` in strips, one item at a time.

    Attributes:
        vae, direction, call: what runs.
        source: gives [B,C,…], on the card or on the host.
        card: where.
        room: bytes that are free on the card now.
        before_call, progress: as of the other rungs.
        host_bytes: what the last try kept on the host.
        notes: why there is no such way, where there is none.
    """

    vae: Vae
    direction: Direction
    call: Callable[[torch.Tensor], torch.Tensor]
    source: Callable[[], torch.Tensor]
    card: Card
    room: Callable[[], int]
    before_call: Callable[[], None]
    progress: Callable[[str, int, int], None]
    host_bytes: int | None = None
    notes: list[str] = field(default_factory=list)

    def __call__(self) -> Iterator[Rung[torch.Tensor]]:
        """The rungs, each in less room than the one before; none where the network is not told."""
        if self.card.kind == "cpu":
            return
        strips = self._strips()
        if isinstance(strips, str):
            self.notes.append(f"no exact strips: {strips}")
            return
        if strips.program.gathered:
            names = ", ".join(f"`{name}`" for name in strips.program.gathered)
            self.notes.append(f"strips run {names} on all rows at once")
        for share in _SHARES:
            yield self._rung(strips, share)

    def _strips(self) -> Strips | str:
        source = self.source()
        asked = Asked(
            name=f"{self.direction} {getattr(self.call, '__name__', '')}",
            shape=(1, *source.shape[1:]),
            dtype=source.dtype,
            device=self.card.device,
            scratch=scratch_of(self.card.kind),
            rates=_RATES,
            allocator=self.card.allocator,
        )
        return strips_of(self.vae.module, self.call, asked, reset=self.vae.reset)

    def _rung(self, strips: Strips, share: float) -> Rung[torch.Tensor]:
        told: list[_Told] = []

        def tell() -> _Told:
            if not told:
                layout = strips.laying.within(int(self._room() * share))
                least = 0 if layout is not None else strips.laying.least()
                told.append(_Told(layout, least))
            return told[0]

        def need() -> int:
            layout, least = tell()
            size = least if layout is None else layout.card_bytes
            return int(size / share) + self._input()

        def barred() -> str | None:
            layout = tell().layout
            if layout is None:
                return None  # what it needs says why
            room = host_room(read_host_memory())
            if layout.host_bytes <= room:
                return None
            return (
                f"needs {format_bytes(layout.host_bytes)} of host memory, "
                f"{format_bytes(room)} is free"
            )

        def run() -> torch.Tensor:
            layout = tell().layout
            if layout is None:  # nobody asked, so the least is tried
                layout = strips.laying.within(strips.laying.least())
                assert layout is not None
            return self._run(strips, layout)

        return Rung(NAME, run, need=need, barred=barred, key=(NAME, share))

    def _room(self) -> int:
        return max(0, self.room() - self._input())

    def _input(self) -> int:
        """Bytes of one item that is still to be brought to the card."""
        source = self.source()
        return 0 if source.device == self.card.device else source[:1].nbytes

    def _run(self, strips: Strips, layout: Layout) -> torch.Tensor:
        source, made = self.source(), []
        self.host_bytes = layout.host_bytes
        total = source.shape[0] * sum(len(each.strips) for each in layout.stages)
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self.progress(NAME, done, total)

        with HostArena(max(1, layout.host_bytes), self.card) as arena:
            lanes = Lanes(compute_of(self.card), open_lane(self.card), open_lane(self.card))
            held = {each.path: each.tensor for each in weights(self.vae.module)}
            runner = Runner(
                strips.program, layout, held, self.card.device, lanes, arena.view,
                self.before_call, tick,
            )  # fmt: skip
            for item in torch.split(source, 1):
                made.append(runner.run(item.contiguous()))
        return made[0] if len(made) == 1 else torch.cat(made)
