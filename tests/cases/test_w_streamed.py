"""Group W, weight residency, on the virtual card: what was planned is run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from tests.cases.common import assert_back, assert_usable, virtual
from tests.cases.test_w06 import TRUE, tied
from tests.streaming import Case, Net, resident
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.demand import Demand
from tightfit.plan.figure import Figure
from tightfit.plan.plan import make
from tightfit.plan.streaming.pieces import Level
from tightfit.plan.streaming.residency import Residency
from tightfit.plan.supply import Supply
from tightfit.testing import toy_vae
from tightfit.units import MIB


class Layer(nn.Module):
    """`size` MiB of weights, used twice: [B, 256] to [B, 256]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size * MIB // 1024, 256) / 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(torch.relu(functional.linear(x, self.weight)) @ self.weight)


def stack(*sizes: int) -> nn.Sequential:
    """Model S of the cases: layers of so many MiB."""
    torch.manual_seed(0)
    return nn.Sequential(*map(Layer, sizes)).requires_grad_(False)


def planned(case: Case, card: VirtualCard, activations: int, *, slots: int = 2) -> Residency:
    """For all of the card; `activations` in bytes."""
    size = card.spec.total
    demand = Demand("denoise", case.units, Figure(activations))
    residency = make([demand], Supply(card.name, size, size), slots=slots).stages[0].residency
    assert residency is not None
    return residency


@contextmanager
def checked(
    case: Case,
    card: VirtualCard,
    residency: Residency,
    *,
    pins: Pins | None = None,
    host: int | None = None,
) -> Iterator[Streaming]:
    """What every case checks about the card and the module."""
    before = {name: value.clone() for name, value in case.module.state_dict().items()}
    held = card.read().allocated
    with (
        card.cap(card.spec.total),
        streamed(
            case.module, card, residency, case.blocks, order=case.order, pins=pins, host=host
        ) as session,
        torch.no_grad(),
    ):
        yield session
    reading = card.read()
    assert reading.peak_reserved is not None
    assert reading.peak_reserved <= card.spec.total
    assert_back(card, held)
    after = case.module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(("slots", "most"), [(1, 54), (2, 48)])
def test_w01_a_stack_larger_than_the_card_runs_within_it(slots: int, most: int) -> None:
    """84 MiB on 64 with 4 of activations: resident weights, copies and work stay within."""
    module, x = stack(*[6] * 10, 24), torch.randn(16, 256)
    case, card, free = Case.of(module, lambda: module(x)), virtual("64MiB"), virtual("1GiB")
    wanted, _ = resident(module, free, lambda: module(x.to(free.device)))
    residency = planned(case, card, 4 * MIB, slots=slots)
    with checked(case, card, residency) as session:
        assert session.resident_bytes == most * MIB
        assert session.ring_bytes == slots * 6 * MIB
        for _ in range(2):
            assert torch.equal(module(x).cpu(), wanted)
    assert_usable(card)


@pytest.mark.parametrize("resident_share", [0, 1, 2])
def test_w03_a_weight_normed_vae_is_the_same_at_any_residency(resident_share: int) -> None:
    """None, half, all: the originals in the parametrizations child move with their layer."""
    vae = toy_vae("VA")
    module, sound = vae.module, torch.randn(1, 2, 1920 * 2)
    case, card = Case.of(module, lambda: vae.decode(vae.encode(sound))), virtual("16MiB")
    source = sound.to(card.device)
    wanted, _ = resident(module, card, lambda: vae.decode(vae.encode(source)))
    originals = {f"down.0.parametrizations.weight.original{at}" for at in range(2)}
    residency = case.everything("block", 2, lambda at: (at + 2) % 3 < 1.5 * resident_share)
    assert originals <= {held.path for group in case.groups(residency) for held in group.held}
    shares = [piece.bytes for piece in residency.streamed]
    assert bool(shares) == (resident_share < 2)
    with checked(case, card, residency):
        for _ in range(2):
            assert torch.equal(vae.decode(vae.encode(source)).cpu(), wanted)


class Reaches(nn.Module):
    """Uses the weight of a child that it never calls, and a table that PyTorch knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.proj = nn.Linear(32, 32), nn.Linear(32, 32)
        self.table = torch.randn(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.table.to(x.device)
        return x + functional.linear(x, self.proj.weight)


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_w04_a_weight_used_without_calling_its_module_is_there(level: Level) -> None:
    """And so is a plain tensor; never a mismatch of devices in mid-run."""
    torch.manual_seed(0)
    module, x = nn.Sequential(Reaches(), Reaches(), nn.Linear(32, 32)), torch.randn(2, 32)
    case, card = Case.of(module, lambda: module(x)), virtual("1MiB")
    inputs = x.to(card.device)
    wanted, _ = resident(module, card, lambda: module(inputs))
    with checked(case, card, case.everything(level, 2, lambda _: False)):
        assert torch.equal(module(inputs).cpu(), wanted)


@pytest.mark.parametrize("name", ["V2N", "V3"])
def test_w04_a_vae_that_is_never_called_itself_streams(name: str) -> None:
    """`encode` and `decode` alone, no `forward`."""
    vae = toy_vae(name)
    source = torch.randn(1, 3, *((5,) if vae.traits.axes == 3 else ()), 16, 16)
    case, card = Case.of(vae.module, lambda: vae.decode(vae.encode(source))), virtual("64MiB")
    inputs = source.to(card.device)
    wanted, _ = resident(vae.module, card, lambda: vae.decode(vae.encode(inputs)))
    with checked(case, card, case.everything("leaf", 2, lambda at: at % 3 == 0)):
        assert torch.equal(vae.decode(vae.encode(inputs)).cpu(), wanted)


@pytest.mark.parametrize("same_object", [True, False])
def test_w06_tied_weights_stream_as_one(same_object: bool) -> None:
    """One copy on the card serves both ends; still tied while streamed, and afterwards."""
    module, ids = tied("cpu", same_object=same_object), torch.arange(3)
    case, card = Case.of(module, lambda: module(ids)), virtual("1MiB")
    wanted, _ = resident(module, card, lambda: module(ids.to(card.device)))
    with checked(case, card, case.everything("block", 1, lambda _: False)) as session:
        assert session.ring_bytes == TRUE
        for _ in range(2):
            assert torch.equal(module(ids).cpu(), wanted)
        assert session.copies.bytes == TRUE
    assert module[0].weight.data_ptr() == module[1].weight.data_ptr()
    assert (module[0].weight is module[1].weight) == same_object


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_w07_every_copy_is_waited_for_and_no_slot_is_filled_while_it_is_read(level: Level) -> None:
    """50 runs with copies that arrive when somebody waits, or by chance before."""
    torch.manual_seed(0)
    module, x = Net(16, (0, 1, 0, 2, 3)).eval(), torch.randn(2, 16)
    case = Case.of(module, lambda: module(x))
    for seed in range(5):
        card = virtual("16MiB")
        inputs = x.to(card.device)
        wanted, _ = resident(module, card, lambda i=inputs: module(i))
        card.faults.lanes, card.faults.lane_seed = True, seed
        residency = case.everything(level, 2, lambda at: at % 3 == 2)
        with checked(case, card, residency) as session:
            for _ in range(5):
                assert torch.equal(module(inputs).cpu(), wanted)
            assert session.copies.count > 10
        assert card.hazards == ()


@pytest.mark.parametrize("missing", ["ready", "free"])
def test_w07_without_its_waits_the_same_ring_would_be_caught(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card sees what a real one would corrupt now and then."""
    card = virtual("16MiB")
    queue = type(compute_of(card) if missing == "ready" else open_lane(card))
    monkeypatch.setattr(queue, "wait", lambda self, mark: None)
    torch.manual_seed(0)
    module, x = Net(16, (0, 0, 0, 0)).eval(), torch.randn(2, 16)
    case = Case.of(module, lambda: module(x))
    card.faults.lanes = True
    inputs = x.to(card.device)
    with checked(case, card, case.everything("block", 2, lambda _: False)):
        for _ in range(3):
            module(inputs)
    assert card.hazards


def test_w08_streaming_neither_frees_nor_waits_while_it_runs() -> None:
    """12 x 2 MiB through a card of 8 on which a free counts only after a wait."""
    module, x = stack(*[2] * 12), torch.randn(4, 256)
    case, card, free = Case.of(module, lambda: module(x)), virtual("8MiB"), virtual("1GiB")
    wanted, _ = resident(module, free, lambda: module(x.to(free.device)))
    inputs = x.to(card.device)
    card.faults.delayed_frees = True
    with checked(case, card, case.everything("block", 2, lambda _: False)) as session:
        value = module(inputs)
        syncs = card.syncs
        for _ in range(2):
            value = module(inputs)
        assert card.syncs == syncs
        assert torch.equal(value.cpu(), wanted)
        assert session.copies.bytes >= 3 * 24 * MIB
        del value


@pytest.mark.parametrize("host", [None, 0])
def test_w08_the_worker_waits_so_that_the_caller_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: int | None
) -> None:
    """The same from memory of which little is pinned, and from a file: nobody else ever waits."""
    made, x = stack(*[2] * 12), torch.randn(4, 256)
    save_file(made.state_dict(), tmp_path / "weights.safetensors")
    module = stack(*[2] * 12)
    module.load_state_dict(load_file(tmp_path / "weights.safetensors"), assign=True)
    case, card, free = Case.of(module, lambda: module(x)), virtual("8MiB"), virtual("1GiB")
    wanted, _ = resident(module, free, lambda: module(x.to(free.device)))
    inputs, waited, wait = x.to(card.device), set[str](), card.await_point
    card.faults.delayed_frees = True
    card.faults.lanes = "strict"

    def await_point(*point: Any) -> None:
        waited.add(threading.current_thread().name)
        wait(*point)

    monkeypatch.setattr(card, "await_point", await_point)
    pins = Pins(4 * MIB, register=lambda *_: True, unregister=lambda _: None)
    residency = case.everything("block", 2, lambda _: False)
    with checked(case, card, residency, pins=pins, host=host) as session:
        for _ in range(3):
            value = module(inputs)
        assert waited == {"tightfit copies"}
        assert torch.equal(value.cpu(), wanted)
        assert session.copies.grown == 0
        assert 0 < pins.bytes <= pins.budget
        del value


@pytest.mark.parametrize("host", [None, 26 * MIB])
@pytest.mark.parametrize("refused", [(3,), (), range(1, 99)])
def test_w10_pins_that_are_refused_and_read_only_maps_make_no_difference(
    tmp_path: Path, refused: Sequence[int], host: int | None
) -> None:
    """10 layers of 6 MiB mapped from a file, 16 MiB of pins, of which the third is refused.

    Also where none is granted, and where memory for two layers and what passes them is there.
    """
    made = stack(*[6] * 10)
    save_file(made.state_dict(), tmp_path / "weights.safetensors")
    module = stack(*[6] * 10)
    module.load_state_dict(load_file(tmp_path / "weights.safetensors"), assign=True)
    x = torch.randn(4, 256)
    case, card, free = Case.of(module, lambda: module(x)), virtual("32MiB"), virtual("1GiB")
    wanted, _ = resident(made, free, lambda: made(x.to(free.device)))
    card.faults.lanes = "strict"
    held: dict[int, int] = {}
    asked: list[int] = []

    def register(address: int, size: int) -> bool:
        asked.append(size)
        assert sum(held.values()) + size <= 16 * MIB
        if len(asked) in refused:
            return False
        held[address] = size
        return True

    pins = Pins(16 * MIB, register=register, unregister=held.pop)
    residency = case.everything("block", 2, lambda _: False)
    with checked(case, card, residency, pins=pins, host=host) as session:
        assert session.pinned_bytes == pins.bytes == sum(held.values()) <= 16 * MIB
        assert list(held.values()).count(6 * MIB) == (2 if len(refused) < 2 else 0)
        for _ in range(2):
            assert torch.equal(module(x).cpu(), wanted)
        assert session.copies.grown == 0
    assert not held
    assert pins.bytes == 0


def test_w12_what_fits_is_resident_and_copies_nothing() -> None:
    """40 MiB on 64 with a measured need of 6: no ring, no copies."""
    module, x = stack(*[4] * 10), torch.randn(4, 256)
    case, card = Case.of(module, lambda: module(x)), virtual("64MiB")
    inputs = x.to(card.device)
    wanted, _ = resident(module, card, lambda: module(inputs))
    with checked(case, card, planned(case, card, 6 * MIB)) as session:
        assert session.resident_bytes == 40 * MIB
        assert session.rings == []
        assert torch.equal(module(inputs).cpu(), wanted)
        assert session.copies.count == 0
