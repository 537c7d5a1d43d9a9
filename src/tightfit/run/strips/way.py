"""The rungs on which a VAE runs in strips: exact, in as much of the card as there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from tightfit.card import Card
from tightfit.card.host_memory import read_host_memory
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.host_budget import host_room
from tightfit.place.strips.arena import HostArena
from tightfit.plan.strips.layout import Layout
from tightfit.plan.strips.shares import ALONE, MOST, SHARES, laid, name_of, taken
from tightfit.plan.tiles import Span
from tightfit.run.boxes import Box, Tell, strip_boxes
from tightfit.run.ceiling import ceiling_of
from tightfit.run.ladder import Rung
from tightfit.run.overflow import is_half, redone_in, widened
from tightfit.run.strips.keeping import Lanes
from tightfit.run.strips.plans import Asked, Strips, strips_of
from tightfit.run.strips.runner import Runner
from tightfit.run.strips.scratch import scratch_of
from tightfit.run.vae import Direction, Vae
from tightfit.units import format_bytes
from tightfit.weigh import weights

ROUNDING = {torch.float32: 1e-5, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
"""Relative rms between strips and a whole run: rounding, which the tests hold them to."""


@dataclass
class StripWays:
    """Ways to code `source` with `vae` in strips, one item at a time.

    Attributes:
        vae, direction, call: what runs.
        source: gives [B,C,…], on the card, on the host, or (to plan) on meta.
        card: where.
        room: bytes that are free on the card now.
        to_host: moves the source from the card to the host, and says how many bytes that freed.
        before_call, progress: as of the other rungs.
        say: told what users should know.
        evict: lets idle models go, and says how many bytes that freed; None where there are none.
        host_bytes: what the last try keeps on the host; None before there was one.
    """

    vae: Vae
    direction: Direction
    call: Callable[[torch.Tensor], torch.Tensor]
    source: Callable[[], torch.Tensor]
    card: Card
    room: Callable[[], int]
    to_host: Callable[[], int]
    before_call: Callable[[], None]
    progress: Tell
    say: Callable[[str], None]
    evict: Callable[[], int] | None = None
    host_bytes: int | None = None

    def __call__(self) -> Iterator[Rung[torch.Tensor]]:
        """The rungs, each in less room than the one before; none where the network is not told.

        Those with the input on the host come last, and only where they have a layout.
        """
        if self.card.kind == "cpu":
            return
        strips = self.strips(self.source().dtype)
        if isinstance(strips, str):
            self.say(f"no exact strips: {strips}")
            return
        if strips.program.gathered:
            names = ", ".join(f"`{name}`" for name in strips.program.gathered)
            self.say(f"strips run {names} on all rows at once")
        for share in SHARES:
            way = _Way(self, strips, share, given_on_card=True)
            yield way.rung()
            if way.layout is None:
                break
        for share in SHARES:
            way = _Way(self, strips, share, given_on_card=False)
            if way.layout is None:
                break
            yield way.rung()
        if self.evict is not None:
            yield self._alone(strips, self.evict)

    def _alone(self, strips: Strips, evict: Callable[[], int]) -> Rung[torch.Tensor]:
        """Strips in the room that there is once idle models are gone: exact, so before tiles."""

        @cache
        def way() -> _Way:
            first = _Way(self, strips, MOST, given_on_card=True)
            if self.source_on_card or first.layout is not None:
                return first
            return _Way(self, strips, MOST, given_on_card=False)

        return Rung(
            ALONE,
            lambda: way().run(),
            need=lambda: way().need(),
            prepare=evict,
            barred=lambda: way().barred(),
            error_bound=lambda: ROUNDING.get(self.vae.dtype),
            bears=len(strips.program.parts),
        )

    @property
    def source_on_card(self) -> bool:
        """Whether it lies there."""
        return self.source().device == self.card.device

    def strips(self, dtype: torch.dtype) -> Strips | str:
        """How the call runs on one item in `dtype`; or why it does not."""
        asked = Asked(
            name=f"{self.direction} {getattr(self.call, '__name__', '')}",
            shape=(1, *self.source().shape[1:]),
            dtype=dtype,
            device=self.card.device,
            scratch=scratch_of(self.card.kind),
            allocator=self.card.allocator,
            ceiling=ceiling_of(self.card.device),
        )
        return strips_of(self.vae.module, self.call, asked, reset=self.vae.reset)

    def item_bytes(self) -> int:
        """Of one item that is not on the card yet."""
        return 0 if self.source_on_card else self.source()[:1].nbytes

    def run(self, way: _Way, layout: Layout) -> torch.Tensor:
        """All items; those that are not finite, though their source is, once more in float32."""
        source = self.source()
        made = self._run(way, layout, list(torch.split(source, 1)), way.strips)
        if is_half(self.vae.dtype):
            for at, item in enumerate(torch.split(source, 1)):
                if not _finite(made[at]) and _finite(item):
                    made[at] = self._redone(way, item, made[at])
        return made[0] if len(made) == 1 else torch.cat(made)

    def _run(
        self, way: _Way, layout: Layout, items: list[torch.Tensor], strips: Strips
    ) -> list[torch.Tensor]:
        self.host_bytes = layout.host_bytes
        done, total = 0, len(items) * sum(len(each.strips) for each in layout.stages)
        boxes = self._boxes(layout, strips)

        def tick() -> None:
            nonlocal done
            box = boxes[done % len(boxes)] if boxes else None
            done += 1
            self.progress(way.name, done, total, box)

        with HostArena(max(1, layout.host_bytes), self.card, ahead=True) as arena:
            lanes = Lanes(compute_of(self.card), open_lane(self.card), open_lane(self.card))
            held = {each.path: each.tensor for each in weights(self.vae.module)}
            runner = Runner(
                strips.program, layout, held, self.card.device, lanes, arena.view,
                self.before_call, tick,
            )  # fmt: skip
            return [runner.run(item.contiguous()) for item in items]

    def _boxes(self, layout: Layout, strips: Strips) -> tuple[Box, ...]:
        """Where the strips of one item lie in the picture."""
        program, shape = strips.program, self.source().shape
        ratio = 1 if self.direction == "encode" else self.vae.traits.spatial
        axis = len(shape) - program.axes[program.network.given]
        picture = [size * ratio for size in shape[2:][-2:]]
        return strip_boxes(layout, axis=axis, picture=picture)

    def _redone(self, way: _Way, item: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """One item in float32. Where there is no room for that, it is a try that ran out of it."""
        with widened(self.vae, self.card.device) as dtype:
            strips = self.strips(dtype)
            assert not isinstance(strips, str)  # it was told in another dtype
            wide = item.to("cpu", dtype)
            layout = laid(
                strips.laying,
                self.room(),
                given=wide.nbytes,
                share=way.share,
                on_card=way.given_on_card,
            )
            if layout is None:
                raise torch.OutOfMemoryError(
                    "the result is not finite, and strips in float32 do not fit"
                )
            (again,) = self._run(way, layout, [wide], strips)
        again = again.to(made.dtype)
        spans = tuple(Span(0, size) for size in again.shape[2:])
        self.say(redone_in(spans, made.dtype, dtype, helped=_finite(again)))
        return again


class _Way:
    """Strips in a share of the room, laid out when first asked for."""

    def __init__(
        self, ways: StripWays, strips: Strips, share: float, *, given_on_card: bool
    ) -> None:
        self.ways, self.strips, self.share = ways, strips, share
        self.given_on_card = given_on_card
        self._moves = not given_on_card and ways.source_on_card
        self.name = name_of(share, on_card=given_on_card)

    @cached_property
    def layout(self) -> Layout | None:
        """None where there is none in this share."""
        room = self.ways.room() + (self.ways.source().nbytes if self._moves else 0)
        return laid(
            self.strips.laying,
            room,
            given=self.ways.item_bytes(),
            share=self.share,
            on_card=self.given_on_card,
        )

    @cached_property
    def least(self) -> int | None:
        """Bytes that a layout takes at least; None where the device computes none rightly."""
        return self.strips.laying.least(given_on_card=self.given_on_card)

    def rung(self) -> Rung[torch.Tensor]:
        """To be climbed. Two shares that give one layout are one try."""
        layout = self.layout
        sizes = None if layout is None else (layout.card_bytes, layout.host_bytes, layout.seconds)
        return Rung(
            self.name,
            self.run,
            need=self.need,
            prepare=self.ways.to_host if self._moves else None,
            barred=self.barred,
            key=("strips", self.given_on_card, sizes),
            error_bound=lambda: ROUNDING.get(self.ways.vae.dtype),
            bears=0 if layout is None else len(layout.stages),
        )

    def need(self) -> int | None:
        """Bytes of the room that it takes; None where no room is enough."""
        size = self.least if self.layout is None else self.layout.card_bytes
        if size is None:
            return None
        given = self.ways.item_bytes()
        need = taken(size, given=given, share=self.share, on_card=self.given_on_card)
        # The least leaves out what the allocator cannot use: more than there is, in any case.
        return need if self.layout is not None else max(need, self.ways.room() + 1)

    def barred(self) -> str | None:
        """Why it must not be tried."""
        if self.layout is None:
            if self.least is not None:
                return None  # what it needs says why
            return "size ceiling: something cannot be cut that is above what the card computes"
        room = host_room(read_host_memory())
        if self.layout.host_bytes <= room:
            return None
        return (
            f"needs {format_bytes(self.layout.host_bytes)} of host memory, "
            f"{format_bytes(room)} is free"
        )

    def run(self) -> torch.Tensor:
        """All items."""
        layout = self.layout
        if layout is None:  # nobody asked, so the least is tried
            assert self.least is not None  # else it was barred
            layout = self.strips.laying.within(2 * self.least, given_on_card=self.given_on_card)
        if layout is None:
            raise torch.OutOfMemoryError("no strips are small enough")
        return self.ways.run(self, layout)


def _finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values).all())
