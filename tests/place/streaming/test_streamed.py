"""A module larger than its card."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.streaming import Case, Foreign, Net, Table, Uncalled, resident
from tightfit.allocators import ALIGNMENT
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place import placed
from tightfit.place.streaming.groups import card_bytes
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.streaming.pieces import Level
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.testing import oom_after
from tightfit.weigh import weights
from tightfit.weigh.module_blocks import blocks_of

KINDS = (0, 1, 0, 2, 3, 0)


def network(width: int = 16, kinds: Sequence[int] = KINDS, *, tied: bool = True) -> Net:
    torch.manual_seed(3)
    return Net(width, kinds, tied=tied).eval()


def case_of(module: Net) -> Case:
    return Case.of(module, lambda: module(torch.zeros(2, module.first.in_features)))


@contextmanager
def streaming(
    module: Net, card: VirtualCard, *, level: Level = "block", slots: int = 2
) -> Iterator[Streaming]:
    """Every third piece stays."""
    case = case_of(module)
    residency = case.everything(level, slots, lambda at: at % 3 == 2)
    with streamed(module, card, residency, case.blocks, order=case.order) as session:
        yield session


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {held.path: held.tensor.detach().clone() for held in weights(module)}


def assert_whole(module: nn.Module, before: dict[str, torch.Tensor]) -> None:
    """All weights on the host with the bits they had."""
    now = {held.path: held.tensor for held in weights(module)}
    assert now.keys() == before.keys()
    assert all(tensor.device.type == "cpu" for tensor in now.values())
    assert all(torch.equal(now[path], value) for path, value in before.items())
    assert not module._forward_pre_hooks
    assert not module._forward_hooks


@dataclass(frozen=True)
class Drawn:
    """A network, and the order of its blocks at each step."""

    kinds: list[int]
    width: int
    tied: bool
    orders: list[list[int]]
    dtype: torch.dtype
    batch: int


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Blocks left out, repeated and in any order, otherwise at each step."""
    kinds = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    order = st.lists(st.integers(0, len(kinds) - 1), max_size=5)
    return Drawn(
        kinds,
        draw(st.sampled_from([4, 8, 24])),
        draw(st.booleans()),
        draw(st.lists(order, min_size=1, max_size=2)),
        draw(st.sampled_from([torch.float32, torch.bfloat16])),
        draw(st.integers(1, 3)),
    )


def assert_streams(
    made: Drawn, card: VirtualCard, module: Net, case: Case, residency: Residency, room: int
) -> None:
    """Bit for bit as resident, within `room` for weights, every copy waited for, all given back."""
    card.faults.lanes = "strict"
    x = torch.randn(made.batch, made.width).to(made.dtype)
    inputs = x.to(card.device)
    wanted = [resident(module, card, lambda o=order: module(inputs, o)) for order in made.orders]
    before, held = values(module), card.read().allocated
    assert held is not None
    budget = held + room + max(peak for _, peak in wanted)
    with (
        card.cap(budget),
        streamed(module, card, residency, case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        for order, (value, _) in [*zip(made.orders, wanted, strict=True)] * 2:
            assert torch.equal(module(inputs, order).cpu(), value)
        assert session.copies.grown == 0
    assert_whole(module, before)
    assert_back(card, held)


@given(drawn(), st.integers(1, 3), st.floats(0, 1), st.sampled_from(["auto", "none"]))
def test_any_network_on_any_budget_gives_the_bits_of_the_resident_one(
    made: Drawn, slots: int, share: float, mode: Mode
) -> None:
    """As planned: between the room in which all is streamed and the room in which nothing is."""
    module = network(made.width, made.kinds, tied=made.tied).to(made.dtype)
    case = Case.of(module, lambda: module(torch.zeros(1, made.width, dtype=made.dtype)))
    least, whole = sorted((case.least(slots=slots), case.whole()))
    room = least + int(share * (whole - least))
    residency = case.planned(room, slots=slots, mode=mode)
    if residency is None:  # nothing to stream with so few blocks: then even all of it is too much
        assert room < case.whole()
        return
    assert_streams(made, virtual("16MiB"), module, case, residency, room)


@given(drawn(), st.integers(1, 3), st.sampled_from(["block", "leaf"]), st.integers(0, 2**24))
def test_any_choice_of_what_stays_gives_the_same_bits_in_the_bytes_that_were_told(
    made: Drawn, slots: int, level: Level, stays: int
) -> None:
    """Whatever a planner may come to: the peak is that of `card_bytes`, rounded."""
    module = network(made.width, made.kinds, tied=made.tied).to(made.dtype)
    case = Case.of(module, lambda: module(torch.zeros(1, made.width, dtype=made.dtype)))
    residency = case.everything(level, slots, lambda at: bool(stays >> at & 1))
    groups = case.groups(residency)
    rounding = ALIGNMENT * (len(groups) + slots + 8)
    room = card_bytes(groups, slots=slots) + rounding
    assert_streams(made, virtual("16MiB"), module, case, residency, room)


@pytest.mark.parametrize("level", ["block", "leaf"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_in_steady_state_nothing_is_allocated_waited_for_or_late(level: Level, slots: int) -> None:
    """After a first step: as many allocations as resident, no synchronisation, copies ahead."""
    module, card = network(), virtual("16MiB")
    x = torch.randn(2, 16).to(card.device)
    with placed(module, card.device), torch.no_grad():
        module(x)
        start = card.allocations
        module(x)
        alone = card.allocations - start
    with streaming(module, card, level=level, slots=slots) as session, torch.no_grad():
        module(x)
        module(x)
        first, syncs, allocations = session.copies, card.syncs, card.allocations
        for _ in range(3):
            module(x)
        assert card.syncs == syncs
        assert card.allocations - allocations == 3 * alone
        assert session.copies.late == first.late
        assert session.copies.bytes > first.bytes


def test_the_step_boundary_is_wrapped() -> None:
    """Even the first block of a step has been copied while the last one ran."""
    module, card = network(kinds=(0, 0, 0, 0)), virtual("16MiB")
    with streaming(module, card) as session, torch.no_grad():
        for _ in range(3):
            module(torch.zeros(1, 16))
        assert session.copies.late == 0


def test_weights_that_fit_in_the_slots_are_copied_once() -> None:
    """With a slot for each, a second step copies nothing."""
    module, card = network(kinds=(0, 0), tied=False), virtual("16MiB")
    case = case_of(module)
    residency = case.everything("block", 4, lambda _: False)
    with streamed(module, card, residency, case.blocks) as session, torch.no_grad():
        module(torch.zeros(1, 16))
        count = session.copies.count
        module(torch.zeros(1, 16))
        assert session.copies.count == count == 4


def test_comparing_changes_nothing_where_all_is_well() -> None:
    """Every copy is waited for and is its master's."""
    module, card = network(), virtual("16MiB")
    card.faults.lanes = "strict"
    case, x = case_of(module), torch.randn(1, 16)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    residency = case.everything("leaf", 2, lambda at: at % 3 == 2)
    with (
        streamed(module, card, residency, case.blocks, order=case.order, compares=True) as session,
        torch.no_grad(),
    ):
        for _ in range(2):
            assert torch.equal(module(x).cpu(), wanted)
        assert session.copies.count > 10


def test_two_passes_of_guidance_stream_each_block_twice() -> None:
    """A module called twice a step is called in the same order each time."""
    module, card = network(kinds=(0, 0, 0, 0)), virtual("16MiB")
    x, y = torch.randn(1, 16), torch.randn(3, 16)
    wanted = [resident(module, card, lambda z=z: module(z.to(card.device)))[0] for z in (x, y)]
    with streaming(module, card) as session, torch.no_grad():
        for _ in range(3):
            assert torch.equal(module(x).cpu(), wanted[0])
            assert torch.equal(module(y).cpu(), wanted[1])
        assert session.copies.late == 0


def test_two_towers_stream_side_by_side() -> None:
    """Each has its own session and its own ring."""
    card, towers = virtual("16MiB"), (network(), network(24))
    wanted = [
        resident(tower, card, lambda t=tower: t(torch.ones(1, t.first.in_features).to(card.device)))
        for tower in towers
    ]
    with streaming(towers[0], card), streaming(towers[1], card, level="leaf"), torch.no_grad():
        for _ in range(2):
            for tower, (value, _) in zip(towers, wanted, strict=True):
                x = torch.ones(1, tower.first.in_features)
                assert torch.equal(tower(x).cpu(), value)
    assert_back(card)


class Interrupted(nn.Module):
    """A block that fails on demand, after its weights were used."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        self.interrupt()
        return x

    def interrupt(self, *_: object) -> None:
        """Fail, if that is asked for."""
        if self.error is not None:
            raise self.error()


@pytest.mark.parametrize("level", ["block", "leaf"])
@pytest.mark.parametrize("error", [KeyError, torch.OutOfMemoryError, KeyboardInterrupt, SystemExit])
def test_after_an_error_in_the_middle_of_a_block_the_module_goes_on(
    error: type[BaseException], level: Level
) -> None:
    """Inside: the next call is right. Outside: whole, also when it ends with the error."""
    module, card = network(kinds=(0, 0, 0, 0)), virtual("16MiB")
    failing = Interrupted(module.blocks[1])
    module.blocks[1] = failing
    x = torch.randn(1, 16).to(card.device)
    wanted, _ = resident(module, card, lambda: module(x))
    before, held = values(module), card.read().allocated

    def run() -> None:
        with streaming(module, card, level=level) as session, torch.no_grad():
            for _ in range(2):
                failing.error = error
                with pytest.raises(error):
                    module(x)
                failing.error = None
                assert torch.equal(module(x).cpu(), wanted)
            assert session.copies.grown == 0
            failing.error = error
            module(x)

    with pytest.raises(error):
        run()
    assert_whole(module, before)
    assert_back(card, held)


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_after_an_interrupt_any_part_may_be_called_next(level: Level) -> None:
    """The slot of what was interrupted is free again, without another one being made."""
    module, card = network(kinds=(0, 0, 0, 0)), virtual("16MiB")
    failing = Interrupted(module.blocks[1].up)
    failing.error = KeyboardInterrupt
    x = torch.randn(1, 16).to(card.device)
    wanted, _ = resident(module, card, lambda: module.blocks[2](x))
    with streaming(module, card, level=level, slots=1) as session, torch.no_grad():
        module.blocks[1].up.register_forward_pre_hook(failing.interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                module(x)
            assert torch.equal(module.blocks[2](x).cpu(), wanted)
        assert session.copies.grown == 0
        module.blocks[1].up._forward_pre_hooks.popitem()


def test_a_card_that_fills_up_on_the_way_leaves_everything_as_it_was() -> None:
    """At each allocation in turn; nothing waits for a collection."""
    module, card = network(kinds=(0, 1)), virtual("16MiB")
    before = values(module)
    flags = [held.tensor.requires_grad for held in weights(module)]
    gc.disable()
    try:
        for at in range(1000):
            try:
                with oom_after(card, at), streaming(module, card):
                    break
            except torch.OutOfMemoryError:
                pass
            assert_whole(module, before)
            assert_back(card)
            assert [held.tensor.requires_grad for held in weights(module)] == flags
    finally:
        gc.enable()
    assert at >= 4


def test_parameters_stay_the_objects_they_are() -> None:
    """Inside and after, ties included; gradients are off inside and as they were after."""
    module, card = network(), virtual("16MiB")
    module.blocks[0].up.bias.requires_grad_(False)
    objects = [(held.path, held.tensor) for held in weights(module)]
    flags = [tensor.requires_grad for _, tensor in objects]
    with streaming(module, card):
        assert all(a.tensor is b for a, (_, b) in zip(weights(module), objects, strict=True))
        assert {held.tensor.device for held in weights(module)} == {card.device}
        assert module.last.weight is module.first.weight
        assert not any(tensor.requires_grad for _, tensor in objects)
    assert all(a.tensor is b for a, (_, b) in zip(weights(module), objects, strict=True))
    assert [tensor.requires_grad for _, tensor in objects] == flags


def test_outside_its_block_a_weight_shows_that_it_is_away() -> None:
    """NaN of the true shape and dtype, read by anybody; a write in place raises."""
    module, card = network(kinds=(0, 0, 0, 0), tied=False), virtual("16MiB")
    case = case_of(module)
    residency = case.everything("block", 1, lambda _: False)
    with streamed(module, card, residency, case.blocks), torch.no_grad():
        module(torch.zeros(1, 16))
        weight = module.blocks[2].up.weight
        assert weight.shape == (32, 16)
        assert weight.isnan().all()
        with pytest.raises(RuntimeError):
            weight.add_(1)


def test_state_dicts_have_the_true_values(tmp_path: Any) -> None:
    """Of the whole and of a part, between calls and in the middle of one; they can be saved."""
    module, card = network(), virtual("16MiB")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    seen: list[bool] = []

    def look(*_: object) -> None:
        now = module.state_dict()
        seen.append(all(torch.equal(now[name], value) for name, value in before.items()))

    with streaming(module, card), torch.no_grad():
        module.blocks[2].up.register_forward_hook(look)
        module(torch.zeros(1, 16))
        look()
        assert seen == [True, True]
        assert list(module.state_dict()) == list(before)
        part = module.blocks[1].state_dict()
        assert all(torch.equal(part[name], before[f"blocks.1.{name}"]) for name in part)
        tied = dict(module.state_dict())
        del tied["last.weight"]
        save_file(tied, tmp_path / "saved.safetensors")
    saved = load_file(tmp_path / "saved.safetensors")
    assert all(torch.equal(saved[name], before[name]) for name in saved)
    assert saved.keys() | {"last.weight"} == before.keys()


def test_layouts_in_memory_are_kept() -> None:
    """A channels-last weight is one on the card, and the bits with it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)).to(
        memory_format=torch.channels_last
    )
    card, x = virtual("16MiB"), torch.randn(1, 8, 9, 9)
    case = Case.of(module, lambda: module(x))
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    strides = []
    module[1].register_forward_pre_hook(lambda m, _: strides.append(m.weight.stride()))
    with (
        streamed(module, card, case.everything("block", 1, lambda _: False), case.blocks),
        torch.no_grad(),
    ):
        assert torch.equal(module(x).cpu(), wanted)
    assert strides == [module[1].weight.stride()]
    assert module[1].weight.is_contiguous(memory_format=torch.channels_last)


def test_parts_can_be_called_without_the_whole() -> None:
    """As pipelines do with autoencoders: whichever module is called, its weights are there."""
    module, card = network(kinds=(0, 3, 1)), virtual("16MiB")
    x = torch.randn(1, 16).to(card.device)

    def call() -> torch.Tensor:
        y = module.blocks[1].two(module.blocks[1].one(module.blocks[0](x)))
        return module.blocks[0].down(torch.cat([module.blocks[2].norm(y)] * 2, dim=-1))

    wanted, _ = resident(module, card, call)
    with streaming(module, card), torch.no_grad():
        assert torch.equal(call().cpu(), wanted)
        assert torch.equal(call().cpu(), wanted)


def test_layers_of_a_block_that_is_never_called_cost_one_copy() -> None:
    """The block lingers in its slot until another one is needed."""
    module, card = network(kinds=(3, 0, 3), tied=False), virtual("16MiB")
    case = case_of(module)
    assert {type(block) for block in module.blocks} == {Uncalled, Table}
    residency = case.everything("block", 1, lambda _: False)
    count = len(residency.pieces)
    with streamed(module, card, residency, case.blocks) as session, torch.no_grad():
        module(torch.zeros(1, 16))
        start = session.copies.count
        module(torch.zeros(1, 16))
        assert session.copies.count - start == count


def test_what_cannot_be_streamed_is_refused_by_its_path() -> None:
    """Nothing but the whole covers this use; on the card it can stay."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x) @ self.two.weight

    module, card = Root(), virtual("16MiB")
    case = Case.of(module, lambda: module(torch.zeros(1, 8)))
    with (
        pytest.raises(UsageError, match=r"`two.weight` is used while `two` is not called"),
        streamed(
            module,
            card,
            case.everything("block", 2, lambda _: False),
            case.blocks,
            order=case.order,
        ),
    ):
        pytest.fail("it was taken")
    assert_back(card)
    x = torch.randn(1, 8).to(card.device)
    wanted, _ = resident(module, card, lambda: module(x))
    stays = case.everything("block", 2, lambda at: case.units[at].name == "two")
    with streamed(module, card, stays, case.blocks, order=case.order), torch.no_grad():
        assert torch.equal(module(x).cpu(), wanted)


def test_views_of_the_same_bytes_are_refused() -> None:
    """Apart, they would no longer be one."""
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    module[1].weight = nn.Parameter(module[0].weight.detach().T)
    case = Case.of(module, lambda: module(torch.zeros(1, 8)))
    with (
        pytest.raises(UsageError, match="different views of the same bytes"),
        streamed(module, virtual("1MiB"), case.everything("block", 1, bool), case.blocks),
    ):
        pytest.fail("it was taken")


def test_a_second_session_of_the_same_module_is_refused() -> None:
    """Its weights can be in one place only."""
    module, card = network(), virtual("16MiB")
    with streaming(module, card) as session:
        before = card.read().allocated
        found = blocks_of(module)
        with (
            pytest.raises(UsageError, match="streamed already"),
            streamed(module, card, session.residency, found),
        ):
            pytest.fail("it was taken")
        assert card.read().allocated == before


def test_a_plan_of_another_module_is_refused() -> None:
    """By the names of the pieces that differ."""
    module, other = network(), case_of(network(kinds=(0,)))
    residency = case_of(module).everything("block", 2, bool)
    with (
        pytest.raises(UsageError, match="not those of"),
        streamed(module, virtual("16MiB"), residency, other.blocks),
    ):
        pytest.fail("it was taken")


def test_inputs_that_require_gradients_are_refused() -> None:
    """There are none to be had; without gradients the same input is taken."""
    module, card = network(), virtual("16MiB")
    x = torch.zeros(1, 16, requires_grad=True)
    with streaming(module, card):
        with pytest.raises(UsageError, match="no_grad"):
            module(x)
        with torch.no_grad():
            module(x)
        assert not module(x.detach()).requires_grad


def test_inference_mode_makes_no_difference() -> None:
    """Calls may change modes; the session may begin in another one."""
    module, card = network(), virtual("16MiB")
    x = torch.randn(1, 16)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with torch.inference_mode(), streaming(module, card):
        assert torch.equal(module(x).cpu(), wanted)
        with torch.inference_mode(False), torch.no_grad():
            assert torch.equal(module(x.clone()).cpu(), wanted)
        assert torch.equal(module(x).cpu(), wanted)
    with torch.no_grad():
        module.first.weight.add_(0)


def test_autocast_keeps_no_copies_of_weights() -> None:
    """Its cache is off in a call, and on again after it."""
    module, card = network(), virtual("16MiB")
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.append(torch.is_autocast_cache_enabled())

    with streaming(module, card), torch.no_grad(), torch.autocast("vcard", torch.bfloat16):
        module.blocks[0].register_forward_hook(look)
        assert torch.is_autocast_cache_enabled()
        module(torch.zeros(1, 16))
        assert torch.is_autocast_cache_enabled()
    assert seen == [False]


def test_threads_take_turns() -> None:
    """Each of many calls from four threads gives its own right result."""
    module, card = network(), virtual("16MiB")
    inputs = [torch.randn(1, 16) for _ in range(4)]
    wanted = [resident(module, card, lambda x=x: module(x.to(card.device)))[0] for x in inputs]
    wrong: list[int] = []

    def work(at: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                if not torch.equal(module(inputs[at]).cpu(), wanted[at]):
                    wrong.append(at)

    with streaming(module, card):
        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_tables_in_plain_attributes_come_along() -> None:
    """And are what they were afterwards, even where the module has replaced them."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.table, self.moved = torch.randn(8), torch.randn(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.moved = self.moved.to(x.device) * 1.0
            return self.layer(x) + self.table + self.moved

    module, card = Keeps(), virtual("1MiB")
    case = Case.of(module, lambda: module(torch.zeros(1, 8)))
    table, x = module.table, torch.randn(1, 8)
    wanted = module(x).detach()
    moved = module.moved
    with (
        streamed(module, card, case.everything("block", 1, lambda _: False), case.blocks),
        torch.no_grad(),
    ):
        torch.testing.assert_close(module(x).cpu(), wanted)
    assert module.table is table
    assert module.moved is moved
    assert_back(card)


@pytest.mark.parametrize("kind", ["layer", "attention"])
def test_modules_of_torch_that_reach_into_children_are_known(kind: str) -> None:
    """Also without an order: attention uses its output layer without calling it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    module, x = (
        nn.ModuleDict({"inside": layer if kind == "layer" else layer.self_attn}),
        torch.randn(1, 3, 16),
    )
    card = virtual("1MiB")
    inputs = x.to(card.device)

    def call(given: torch.Tensor) -> torch.Tensor:
        if kind == "layer":
            return module["inside"](given)
        return module["inside"](given, given, given, need_weights=False)[0]

    case = Case.of(module, lambda: call(x))
    wanted, _ = resident(module, card, lambda: call(inputs))
    residency = case.everything("leaf", 1, lambda _: False)
    with streamed(module, card, residency, case.blocks), torch.no_grad():
        assert torch.equal(call(inputs).cpu(), wanted)


def test_an_overlooked_foreign_use_shows_as_nan() -> None:
    """Without an order nobody knows of it; it is never a wrong number."""
    torch.manual_seed(0)
    module = nn.Sequential(Foreign(8), Foreign(8))
    card = virtual("1MiB")
    case = Case.of(module, lambda: module(torch.zeros(1, 8)))
    residency = case.everything("leaf", 1, lambda _: False)
    x = torch.randn(1, 8)
    wanted, _ = resident(module, card, lambda: module(x.to(card.device)))
    with streamed(module, card, residency, case.blocks), torch.no_grad():
        assert module(x).cpu().isnan().all()
    with streamed(module, card, residency, case.blocks, order=case.order), torch.no_grad():
        assert torch.equal(module(x).cpu(), wanted)


@pytest.mark.parametrize("name", ["cpu", "virtual:16MiB"])
@pytest.mark.parametrize("level", ["block", "leaf"])
def test_what_a_step_did_is_told_where_it_is_asked_for(name: str, level: Level) -> None:
    """Each use and the bytes copied for it, with the same result; nothing where it is not asked."""
    module, card = network(), open_card(name)
    case, x = case_of(module), torch.randn(1, 16)
    residency = case.everything(level, 2, lambda at: at % 3 == 2)
    results = []
    for traces in (False, True):
        with (
            streamed(
                module, card, residency, case.blocks, order=case.order, traces=traces
            ) as session,
            torch.no_grad(),
        ):
            module(x)
            before = session.copies.bytes
            results += [module(x).cpu() for _ in range(3)]
            moved = session.copies.bytes - before
            steps = session.steps
        assert bool(steps) == traces
    assert all(torch.equal(result, results[0]) for result in results)
    assert len(steps) == 4
    assert sum(step.moved_bytes for step in steps[1:]) == moved
    streams = {group.name for group in session.groups if not group.stays}
    assert {block.name for block in steps[-1].blocks} == streams
    assert (steps[-1].seconds is None) == (name != "cpu")


def test_a_step_that_was_interrupted_is_not_told() -> None:
    """One that failed is: it is known when that ended."""
    module, card = network(), virtual("16MiB")
    case, x = case_of(module), torch.randn(1, 16)
    failing = Interrupted(module.blocks[1])
    residency = case.everything("block", 2, lambda _: False)
    with (
        streamed(module, card, residency, case.blocks, order=case.order, traces=True) as session,
        torch.no_grad(),
    ):
        hook = module.blocks[1].register_forward_hook(failing.interrupt)
        for error, told in ((KeyboardInterrupt, 0), (KeyError, 1)):
            failing.error = error
            with pytest.raises(error):
                module(x)
            assert len(session.steps) == told
        hook.remove()
        module(x)
        assert len(session.steps) == 2
        assert len(session.steps[0].blocks) < len(session.steps[1].blocks)
