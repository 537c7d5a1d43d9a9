"""Which weights of a module get smaller by packing, and whether a call is the faster for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.place.packing.codec import encode
from tightfit.place.packing.packed import LEAST, scratch_for
from tightfit.plan.demand import Unit
from tightfit.plan.streaming.packing import Packable, kept_as_they_are, packed
from tightfit.plan.streaming.pieces import Level, pieces_of
from tightfit.plan.streaming.residency import Limits, Residency
from tightfit.plan.streaming.spread import spread
from tightfit.weigh.blocks import Weights
from tightfit.weigh.shells import inner_of
from tightfit.weigh.tensors import weights

_SAMPLES, _SAMPLE = 8, 2 * 8192
"""Looks at a tensor, and values of each: what they shrink to is what it is taken to shrink to."""
_PARTS = (1.0, 0.85, 0.6)
"""Of the weights that should stay as they are by the rates alone: with fewer, copies have some time
to spare, and compute waits for them less."""
_MARGIN = 1 / 512
"""Of a tensor, what it may take more than its samples: a plan has to hold."""


@dataclass(frozen=True)
class Choice:
    """Weights as they would be stored.

    Attributes:
        units: for a plan.
        unpacked: bytes, as they are used, that a call would unpack.
        scratch: bytes that unpacking takes meanwhile, beside what it unpacks to.
        pieces: how many are packed, at the least.
    """

    units: tuple[Unit, ...]
    unpacked: int = 0
    scratch: int = 0
    pieces: int = 0


@dataclass(frozen=True)
class Packs:
    """What the parts of a module would take packed.

    Attributes:
        sizes: by the name of a unit or part in a plan, bytes; those that shrink alone.
        raw: of the same, bytes as they are.
        scratch: that unpacking takes on the card, beside what it unpacks to.
    """

    sizes: dict[str, int]
    raw: dict[str, int]
    scratch: int

    @classmethod
    def of(
        cls,
        module: nn.Module,
        blocks: Weights,
        units: Sequence[Unit],
        values: Callable[[torch.Tensor], torch.Tensor],
        *,
        apart: frozenset[str],
        device_type: str,
    ) -> Packs:
        """By samples of `values` of its tensors. `units` are of `blocks`, in their order.

        `apart` are owners whose weights are in use beside those of others: they stay as they are,
        since one scratch is all there is to unpack into.
        """
        gains: dict[str, int] = {}
        seen: set[int] = set()
        for held in inner_of(weights(module)):
            tensor = held.tensor
            if id(tensor) in seen or held.leaf in apart:
                continue
            seen.add(id(tensor))
            if tensor.dtype == torch.bfloat16 and tensor.nbytes >= LEAST:
                gains[held.leaf] = gains.get(held.leaf, 0) + _gain(values(tensor))
        sizes, raw = {}, {}
        for unit, block in zip(units, blocks.blocks, strict=True):
            for part, leaf in zip(unit.parts or (unit,), block.leaves, strict=True):
                gain = gains.get(leaf.name, 0)
                if gain > 0 and not unit.pinned:
                    raw[part.name] = part.bytes
                    sizes[part.name] = round_up(part.bytes - gain, ALIGNMENT)
        most = max((unit.bytes for unit in units), default=0)
        return cls(sizes, raw, scratch_for(most, device_type) if sizes else 0)

    def weights(self, unpack: float | None) -> Packable:
        """All that shrink together."""
        return Packable(sum(self.raw.values()), sum(self.sizes.values()), unpack)

    def choices(
        self, units: Sequence[Unit], plain: Residency | None, limits: Limits, unpack: float | None
    ) -> Iterator[Choice]:
        """All packed; and where `plain`, the plan without, has rates: as much as is faster."""
        yield self._choice(units, frozenset())
        if plain is None or plain.ring.level not in ("block", "leaf"):
            return
        level: Level = plain.ring.level
        weights = self.weights(unpack)
        converted = max((piece.bytes for piece in plain.pieces), default=0)
        room = plain.bytes - int(plain.ring.bytes * weights.ratio) - converted
        moved = max(1, weights.packed - room)
        copying = limits.copying(moved)
        link = moved / copying if copying else limits.link
        most = kept_as_they_are(weights, room=room, compute=limits.compute, link=link)
        pieces = pieces_of(units, level, convert="card")
        for part in _PARTS if most > 0 else ():
            stays = spread(pieces, [piece.stays for piece in pieces], int(most * part))
            kept = {piece.name for piece, stay in zip(pieces, stays, strict=True) if stay}
            yield self._choice(units, frozenset(kept))

    def _choice(self, units: Sequence[Unit], kept: frozenset[str]) -> Choice:
        found = tuple(packed(unit, self.sizes, kept) for unit in units)
        sizes = [_unpacked(unit) for unit in found]
        return Choice(found, sum(sizes), self.scratch, sum(map(bool, sizes)))


def _unpacked(unit: Unit) -> int:
    return unit.unpacked or sum(part.unpacked for part in unit.parts)


def _gain(tensor: torch.Tensor) -> int:
    """Bytes that packing saves, by samples."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > _SAMPLES * _SAMPLE:
        step = flat.numel() // _SAMPLES
        flat = torch.cat([flat[at * step : at * step + _SAMPLE] for at in range(_SAMPLES)])
    found = encode(flat.contiguous())
    if found is None:
        return 0
    saved = 1 - found[1].bytes / flat.nbytes - _MARGIN
    return max(0, int(tensor.nbytes * saved))
