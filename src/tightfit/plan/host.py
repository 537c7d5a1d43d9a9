"""The same ledger for host memory: masters, what is pinned, and what strips keep there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.plan.demand import Demand
from tightfit.plan.figure import Figure
from tightfit.plan.pace import Copied
from tightfit.plan.streaming.residency import Residency
from tightfit.plan.supply import Host


@dataclass(frozen=True)
class Streamed:
    """One buffer that a piece is copied from.

    Attributes:
        model: whose weights these are.
        name: of the piece.
        bytes: as stored.
        calls: how often it is copied in the job.
        mapped: its master can stay in its file.
    """

    model: str
    name: str
    bytes: int
    calls: int
    mapped: bool = False


@dataclass(frozen=True)
class HostPlan:
    """What the job takes of the host.

    Attributes:
        room: what there was.
        masters: bytes of weights in memory that is not pinned.
        mapped: bytes of weights that stay in their files (page cache apart).
        pinned_asked: bytes that would be pinned without any limit.
        pinned: bytes of weights that are.
        pinned_real: what they take.
        activations: what strips keep there.
        where: (model, piece) → ``parked``, ``pinned``, ``staged`` or ``mapped``.
        needs: what has to be in memory in any case.
    """

    room: int
    masters: int
    mapped: int
    pinned_asked: int
    pinned: int
    pinned_real: int
    activations: Figure
    where: dict[tuple[str, str], str]
    needs: int

    @property
    def taken(self) -> int:
        """Of the room, as far as it is known."""
        return self.masters + self.pinned_real + self.activations.known

    @property
    def fits(self) -> bool:
        """Whether that is there."""
        return self.taken <= self.room

    def copied(self, model: str, residency: Residency) -> Copied:
        """What one call with `residency` of a stage of `model` copies, from where."""
        sums = {"pinned": 0, "staged": 0, "mapped": 0, "parked": 0}
        for piece in residency.streamed:
            sums[self.where[model, piece.name]] += piece.moved
        return Copied(**sums)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "room_bytes": self.room,
            "fits": self.fits,
            "mapped_bytes": self.mapped,
            "ledger": {
                "host_masters": {"bytes": self.masters, "source": "measured"},
                "host_pinned_asked": {"bytes": self.pinned_asked, "source": "predicted"},
                "host_pinned_real": {"bytes": self.pinned_real, "source": "predicted"},
                "host_activations": {
                    "bytes": self.activations.bytes,
                    "source": self.activations.source,
                },
            },
        }


def rounded(size: int, rounding: str) -> int:
    """What a pinned buffer of `size` bytes really takes."""
    if rounding == "power_of_two" and size:
        return 1 << (size - 1).bit_length()
    return size


def streamed_pieces(
    demands: Sequence[Demand], residencies: Sequence[Residency | None]
) -> tuple[Streamed, ...]:
    """Every piece that some stage streams, once."""
    found: dict[tuple[str, str], Streamed] = {}
    for demand, residency in zip(demands, residencies, strict=True):
        for piece in residency.streamed if residency else ():
            key = (demand.owner, piece.name)
            calls = demand.calls + (found[key].calls if key in found else 0)
            found[key] = Streamed(*key, piece.bytes, calls, demand.mapped)
    return tuple(found.values())


def plan_host(
    host: Host,
    weights: dict[str, tuple[int, bool]],
    pieces: Sequence[Streamed],
    *,
    strips: Figure,
    annexe: int = 0,
) -> HostPlan:
    """Pin what is copied most often, within what the host has; the rest is staged or mapped.

    Masters are all in memory if there is room for them; else those that lie in files stay there,
    except the buffers that streaming copies from, as far as they fit. What is copied from a second
    card stays where it is.

    Args:
        weights: by model, bytes of its masters and whether they can stay in their file.
        pieces: what is streamed.
        strips: what activations take of the host.
        annexe: bytes that may lie on a second card; those that are copied most often do.
    """
    everything = sum(size for size, _ in weights.values())
    bound = sum(size for size, mapped in weights.values() if not mapped)
    room = host.room - strips.known
    all_in_memory = everything <= room
    masters = everything if all_in_memory else bound
    limit = host.room if host.pin_limit is None else host.pin_limit
    where: dict[tuple[str, str], str] = {}
    pinned = real = 0
    for piece in _often_first(pieces):
        if piece.bytes <= annexe:
            annexe -= piece.bytes
            where[piece.model, piece.name] = "parked"
            masters -= piece.bytes if piece.mapped and all_in_memory else 0
            continue
        took = rounded(piece.bytes, host.rounding)
        inside = all_in_memory or not piece.mapped
        spare = room - masters - real
        place = "staged" if inside else "mapped"
        if real + took <= limit and took - (piece.bytes if inside else 0) <= spare:
            place = "pinned"
            pinned, real = pinned + piece.bytes, real + took
            masters -= piece.bytes if inside else 0
        elif not inside and piece.bytes <= spare:
            place = "staged"
            masters += piece.bytes
        where[piece.model, piece.name] = place
    return HostPlan(
        room=host.room,
        masters=masters,
        mapped=max(0, everything - masters - pinned),
        pinned_asked=sum(
            piece.bytes for piece in pieces if where[piece.model, piece.name] != "parked"
        ),
        pinned=pinned,
        pinned_real=real,
        activations=strips,
        where=where,
        needs=bound + strips.known,
    )


def _often_first(pieces: Sequence[Streamed]) -> Iterator[Streamed]:
    """The order in which pinning pays; pieces copied equally often keep theirs."""
    yield from sorted(pieces, key=lambda piece: -piece.calls)
