"""One process of `stream.py`: a network resident on the free card, or one row on a small one."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from ballast import Ballast
from held_card import Resident, reside
from stream_eight_bits import converting, store
from stream_jobs import DTYPES, EIGHT_BITS, MINE, PACKED, RESIDENT, Job, Model
from stream_ours import Seen, ours
from stream_peers import Room, budget_of, prepare
from stream_rows import StreamRow, least_copied, limit_of
from stream_steps import Inputs, Timed, digest, host_seconds, inputs_of, rms, same_bits, timed
from stream_trace import where_time_goes
from stream_weights import Shelf, bring_home
from torch import nn

from tightfit.adapters import find_parts, outline_part, parse_dtype
from tightfit.adapters.parts import Part
from tightfit.card import Card, open_card
from tightfit.place.link import measure_link
from tightfit.units import MIB
from tightfit.weigh import weight_bytes, weights

RANDOM = "random weights"
_WORDS = 300
_FREE = "virtual:64GiB"
_SMALL = "virtual:{bytes}B"


@dataclass(frozen=True)
class Whole:
    """What the resident run left for the others.

    Attributes:
        seconds: of a step.
        activations: bytes that a step takes beside weights.
        digest: of its output.
    """

    seconds: float
    activations: int
    digest: str

    def keep(self, folder: Path, output: torch.Tensor) -> None:
        """Write it, with the output."""
        torch.save(output, folder / "output.pt")
        (folder / "whole.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> tuple[Whole, torch.Tensor]:
        """It and the output."""
        content = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
        return cls(**content), torch.load(folder / "output.pt", weights_only=True)


@dataclass(frozen=True)
class Place:
    """Where a process runs.

    Attributes:
        ballast: makes the CUDA card small; None is that cards are virtual.
        folder: for what processes tell one another.
        shelf: of the weights.
        traced: rows of ours say where the time of a step goes.
    """

    ballast: Ballast | None
    folder: Path
    shelf: Shelf
    traced: bool = False

    def free_card(self) -> Card:
        """With everything free."""
        return open_card(_FREE if self.ballast is None else "cuda:0")

    def of(self, model: Model) -> Path:
        """The folder of what is known of one size."""
        folder = self.folder / model.shown
        folder.mkdir(exist_ok=True)
        return folder

    def packs(self, who: str) -> str:
        """What `who` of ours does about packing; of a virtual card no rates are known."""
        if who != PACKED:
            return "off"
        return "on" if self.ballast is None else "auto"

    def lift(self) -> None:
        """All of the card is free from here on."""
        if self.ballast is not None:
            self.ballast.leave(None)

    @contextmanager
    def small(self, card: Card, size: int) -> Iterator[None]:
        """While inside, `size` bytes of `card` are free; its context and libraries exist before."""
        if self.ballast is None:
            yield
            return
        card.trim()
        card.sync()
        self.ballast.leave(size)
        try:
            yield
        finally:
            self.lift()


def built(model: Model, card: Card) -> Resident:
    """Draw the weights on the free card, and store them there as they are to be."""
    part, dtype = _part(model)
    network = reside(part, card, dtype=dtype)
    enliven(network.module)
    if model.dtype == EIGHT_BITS:
        store(network.module)
        card.trim()
    return network


def resident(place: Place, model: Model, card: Card, network: Resident) -> StreamRow:
    """Run it on the free card, where it lies, and write down what the others need.

    What is stored in eight bits is converted by hooks that know nothing of streaming or of plans.
    """
    part, dtype = _part(model)
    inputs = inputs_of(part, network.outline, model.size, dtype=dtype, device=card.device)
    card.reset_peaks()
    held = card.read().allocated or 0
    with converting(network.module, dtype):
        done = timed(card, inputs.into(network.module))
    after = card.read()
    size = weight_bytes(network.module)
    told = digest(done.late)
    notes = [RANDOM, f"output sha256 {told}"]
    if model.dtype == EIGHT_BITS:
        notes.append("each layer converted as it is called, by hooks of this benchmark")
    if not same_bits(done.early, done.late):
        notes.append("**two steps gave different bits**")
    if not torch.isfinite(done.late).all():
        notes.append("**the output is not finite**")
    Whole(done.typical, max(0, (after.peak_allocated or 0) - held), told).keep(
        place.of(model), done.late
    )
    return StreamRow(
        model.title,
        RESIDENT,
        seconds=done.typical,
        all_seconds=done.seconds,
        limit_seconds=done.typical,
        peak_allocated_bytes=after.peak_allocated,
        peak_reserved_bytes=after.peak_reserved,
        bit_equal=same_bits(done.early, done.late),
        rms_error=0.0,
        resident_seconds=done.typical,
        resident_bytes=size,
        copied_bytes=0,
        weights_bytes=size,
        digest=told,
        note="; ".join(notes),
    )


def enliven(module: nn.Module) -> None:
    """The scales of norms are 1, as in a network before it is trained.

    Near 0 they would silence what comes after them, and wrong weights would not show in the bits.
    """
    with torch.no_grad():
        for held in weights(module):
            if held.tensor.ndim == 1 and "norm" in held.path and held.name == "weight":
                held.tensor.fill_(1)


def shelve(place: Place, module: nn.Module, card: Card) -> float:
    """The weights of `module` go where other processes find them; seconds it took."""
    start = time.perf_counter()
    place.shelf.put(module)
    card.sync()
    return time.perf_counter() - start


def come_home(module: nn.Module, card: Card) -> None:
    """The weights of `module` come to the host, and the card is empty but for its inputs."""
    bring_home(module)
    gc.collect()
    card.trim()


def row_of(place: Place, job: Job, who: str, margin: int, module: nn.Module | None) -> StreamRow:
    """Run `job` on the small card; a failure is a row with a note.

    `module` has its weights on the host; None is that they are on the shelf.
    """
    row = StreamRow(job.name, who, completed=False, note=RANDOM)
    try:
        return _measured(place, job, row, margin, module)
    except Exception as error:
        return replace(row, note=f"{RANDOM}; {_told(error)}", budget_bytes=job.bytes)


def _measured(
    place: Place, job: Job, row: StreamRow, margin: int, module: nn.Module | None
) -> StreamRow:
    part, dtype = _part(job.model)
    whole, wanted = Whole.read(place.of(job.model))
    card = (
        open_card(_SMALL.format(bytes=job.bytes)) if place.ballast is None else open_card("cuda:0")
    )
    _warm(card, dtype)
    link = measure_link(card.device, free=None).pinned
    outline = outline_part(part, dtype=dtype)
    if module is None:
        module = place.shelf.fill(outline_part(part, dtype=dtype))
    size = weight_bytes(module)
    inputs = inputs_of(part, outline, job.model.size, dtype=dtype, device=card.device)
    pinned_before = _pinned_by_torch()
    with place.small(card, job.bytes):
        card.reset_peaks()
        before = card.read()
        room = (before.free or 0) + (before.reserved or 0)
        row = replace(
            row,
            budget_bytes=room,
            link_rate=link,
            weights_bytes=size,
            resident_seconds=whole.seconds,
            least_bytes=least_copied(weights=size, beside=whole.activations, room=room),
        )
        seen = Seen()
        work: float | None = None
        copied: int | None = None
        start = time.perf_counter()
        if row.who in MINE:
            packs = place.packs(row.who)
            with ours(module, card, inputs.values, pack=packs, traces=place.traced) as look:
                card.sync()
                ready, placed = time.perf_counter() - start, card.read()
                done, copied, seen, work = _ours(card, module, inputs, look)
                after = card.read()
                if place.traced:
                    spent = where_time_goes(
                        card,
                        inputs.into(module),
                        seconds=done.typical,
                        stall=seen.stall,
                        work=work,
                        lift=place.lift,
                    )
                    seen = replace(seen, words="; ".join(filter(None, (seen.words, spent))))
        else:
            budget = budget_of(room=room, activations=whole.activations, margin=margin)
            prepare(row.who, module, Room(card.device, budget))
            card.sync()
            ready, placed = time.perf_counter() - start, card.read()
            done = timed(card, inputs.into(module))
            after = card.read()
            seen = Seen(pinned=_pinned_by_torch(pinned_before))
    told = digest(done.late)
    equal = same_bits(done.early, wanted) and same_bits(done.late, wanted)
    refused = after.refused_since(before)
    outside = room - (after.free or 0) - (after.reserved or 0)
    notes = [RANDOM, f"output sha256 {told}", seen.words]
    notes.append(f"{refused} requests were refused in silence" if refused else "")
    if outside > 0:
        notes.append(f"{outside / MIB:,.0f} MiB of the room went to what lies outside tensors")
    notes.append("" if torch.isfinite(done.late).all() else "**the output is not finite**")
    notes.append("" if told == digest(done.early) else "**two steps gave different bits**")
    return replace(
        row,
        completed=True,
        seconds=done.typical,
        all_seconds=done.seconds,
        limit_seconds=limit_of(whole.seconds, copied, link),
        peak_reserved_bytes=max(placed.peak_reserved or 0, after.peak_reserved or 0),
        peak_allocated_bytes=max(placed.peak_allocated or 0, after.peak_allocated or 0),
        bit_equal=equal,
        rms_error=0.0 if equal else rms(done.late, wanted),
        predicted_bytes=seen.predicted,
        predicted_reserved_bytes=seen.predicted_reserved,
        copied_bytes=copied,
        resident_bytes=seen.resident,
        ring_bytes=seen.ring,
        pieces=seen.pieces,
        setup_seconds=ready + done.first - done.typical,
        placing_seconds=seen.placing,
        unpack_seconds=seen.unpacking,
        packed_pieces=seen.packed,
        pinned_planned_bytes=seen.pinned_planned,
        pinned_bytes=seen.pinned,
        host_seconds=work,
        stall_seconds=seen.stall,
        digest=told,
        note="; ".join(filter(None, notes)),
    )


def _ours(
    card: Card, module: nn.Module, inputs: Inputs, look: Callable[[], Seen]
) -> tuple[Timed, int | None, Seen, float | None]:
    """Steps, bytes copied in one, what was seen, host work. What cannot be read is no failure."""
    step = inputs.into(module)
    done = timed(card, step)
    seen, copied, work = Seen(), None, None
    problem = ""
    try:
        seen = look()
        step()
        card.sync()
        if seen.copied is not None:
            copied = (look().copied or 0) - seen.copied
        work = host_seconds(card, module, step)
    except Exception as error:  # the steps were measured: figures that are missing are said
        problem = f"figures are missing: {_told(error)}"
    return done, copied, replace(seen, words="; ".join(filter(None, (seen.words, problem)))), work


def _part(model: Model) -> tuple[Part, torch.dtype]:
    (part,) = find_parts(f"random:{model.spec}")
    dtype = parse_dtype(DTYPES[model.dtype])
    assert dtype is not None
    return part, dtype


def _warm(card: Card, dtype: torch.dtype) -> None:
    """The context and the libraries' own buffers are there before the card gets small."""
    one = torch.ones(1, 8, 64, 64, dtype=dtype, device=card.device)
    two = nn.functional.scaled_dot_product_attention(one, one, one) @ one
    nn.functional.conv2d(two, one[:, :, :3, :3]).sum().cpu()
    card.sync()


def _pinned_by_torch(before: int | None = None) -> int | None:
    """Bytes of host memory that PyTorch's own allocator has locked, since `before`."""
    now: int | None = None
    with suppress(Exception):  # not every version counts them
        stats: Any = torch.cuda.host_memory_stats()
        now = int(stats["allocated_bytes.current"])
    return now if now is None or before is None else now - before


def _told(error: Exception) -> str:
    """The words of an error; the error itself holds frames, and they hold tensors."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines)[:_WORDS]}" if lines else type(error).__name__
