"""`fit` and `unfit`: the same numbers at any budget, and the module as it was afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tightfit
from tests.streaming import Net, resident
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.faults import Planned
from tightfit.errors import MemoryShortage, UsageError
from tightfit.run.fitting import keeping
from tightfit.units import KIB, MIB

WIDTH = 64
KINDS = (0, 1, 2, 3, 0, 2)


def opened(size: str) -> VirtualCard:
    card = open_card(f"virtual:{size}")
    assert isinstance(card, VirtualCard)
    card.faults.lanes = "strict"
    return card


def network(kinds: tuple[int, ...] = KINDS) -> Net:
    torch.manual_seed(0)
    return Net(WIDTH, kinds).eval()


def inputs(rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def wanted(module: nn.Module, call: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """The result with everything on a large card."""
    card = open_card("virtual:1GiB")
    assert isinstance(card, VirtualCard)
    value, _ = resident(module, card, lambda: call(card))
    return value


def bytes_of(module: nn.Module) -> int:
    return sum(p.nbytes for p in {id(p): p for p in module.parameters()}.values())


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 1.5])
def test_any_budget_gives_the_bits_of_the_resident_run_within_it(share: float) -> None:
    """Ten calls: the peak stays within the budget, and `unfit` leaves nothing."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    budget = int(share * bytes_of(module)) + 64 * KIB
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget, example=(x,))
        for _ in range(10):
            result = module(x)
            assert result.device == card.device
            assert torch.equal(result.cpu(), expected)
        del result
    tightfit.unfit(module)
    reading = card.read()
    assert reading.allocated == 0
    assert reading.peak_allocated is not None
    assert reading.peak_allocated <= budget
    assert card.hazards == ()


def test_everything_is_as_it_was_after_unfit() -> None:
    """Objects, values, gradients, hooks, attributes and methods."""
    module, x = network(), inputs()
    before = {
        name: (p, p.detach().clone(), p.requires_grad) for name, p in module.named_parameters()
    }
    names = {name: set(vars(part)) for name, part in module.named_modules()}
    with torch.no_grad():
        tightfit.fit(module, card=opened("64MiB"), vram="100KiB", example=(x,))
        module(x)
        assert all(not p.requires_grad for p in module.parameters())
    assert tightfit.unfit(module) is module
    for name, parameter in module.named_parameters():
        same, value, wanted_grad = before[name]
        assert parameter is same
        assert parameter.device.type == "cpu"
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == wanted_grad
    for name, part in module.named_modules():
        assert set(vars(part)) == names[name]
        assert not part._forward_pre_hooks
        assert not part._forward_hooks
    assert module(x).requires_grad


def test_without_an_example_the_first_call_tells() -> None:
    """Foreign uses of weights are seen before the first real call, so that nothing is NaN."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    tightfit.fit(module, card=card, vram="120KiB")
    assert next(module.parameters()).device == card.device
    with torch.no_grad():
        assert torch.equal(module(x).cpu(), expected)
    assert [change.call for change in tightfit.fitted(module).changes] == [None, 0]
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_what_fits_stays_and_copies_nothing() -> None:
    """A card with room for everything has everything."""
    module, x = network(), inputs()
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,))
        module(x)
    fitted = tightfit.fitted(module)
    assert fitted.plan.stages[0].streamed == ()
    assert fitted.session.copies.bytes == 0
    tightfit.unfit(module)


def test_weights_make_way_for_another_program_and_come_back_later() -> None:
    """Shrink at once, grow when there has been room for a while; always the same bits."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("400KiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,))
        fitted = tightfit.fitted(module)
        much = fitted.plan.stages[0].residency.resident_bytes  # type: ignore[union-attr]
        assert torch.equal(module(x).cpu(), expected)
        taken = 150 * KIB
        tightfit.unfit(module)
        card.occupy(taken)
        tightfit.fit(module, card=card, example=(x,))
        fitted = tightfit.fitted(module)
        assert torch.equal(module(x).cpu(), expected)
        little = fitted.plan.stages[0].residency.resident_bytes  # type: ignore[union-attr]
        assert little < much
        card.vacate(taken)
        for _ in range(8):
            assert torch.equal(module(x).cpu(), expected)
        assert fitted.plan.stages[0].residency.resident_bytes == much  # type: ignore[union-attr]
        assert [change.why.rpartition(" are ")[2] for change in fitted.changes[1:]] == ["free"]
        changes = len(fitted.changes)
        for _ in range(8):
            module(x)
        assert len(fitted.changes) == changes
    tightfit.unfit(module)


def test_room_that_no_plan_can_use_is_planned_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes the host milliseconds; when more comes free than that, it is looked at again."""
    net, x = network(), inputs()
    card = opened("64MiB")
    tightfit.fit(net, card=card, mode="none", example=(x,))
    made: list[int] = []
    plain = keeping.plan_call

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(keeping, "plan_call", counted)
    with torch.no_grad():
        for _ in range(20):
            net(x)
    assert len(made) <= 2
    assert len(tightfit.fitted(net).changes) == 1
    tightfit.unfit(net)


class Greedy(nn.Module):
    """Takes as much as its input says, which no dry run can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.empty(int(x[0, 0]), device=x.device)
        result: torch.Tensor = self.layer(x) + 0 * held.numel()
        return result


@pytest.mark.parametrize("allocator", ["exact", "native"])
def test_a_call_does_not_pass_a_budget_below_the_card(allocator: str) -> None:
    """Whatever was foreseen: it is made again, and refused where it cannot be within."""
    card = opened(f"256MiB,allocator={allocator}")
    module = Greedy().eval()
    x = torch.zeros(2, WIDTH)
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="48MiB")
        module(x)
        x[0, 0] = 32 * MIB // 4
        module(x)
        x[0, 0] = 64 * MIB // 4
        with pytest.raises(MemoryShortage):
            module(x)
        reading = card.read()
        assert reading.peak_reserved is not None
        assert reading.peak_reserved <= 48 * MIB
        x[0, 0] = 0
        module(x)
    tightfit.unfit(module)


def test_a_larger_input_makes_weights_leave_and_a_smaller_one_brings_them_back_slowly() -> None:
    """The next shape is weighed before it is run: nothing fails first."""
    module, small, large = network(), inputs(8), inputs(64)
    expected = wanted(module, lambda card: module(large.to(card.device)))
    card = opened("64MiB")
    budget = bytes_of(module) + 32 * KIB
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget, example=(small,))
        fitted = tightfit.fitted(module)
        module(small)
        much = fitted.session.resident_bytes
        card.reset_peaks()
        assert torch.equal(module(large).cpu(), expected)
        assert fitted.session.resident_bytes < much
        assert (card.read().peak_allocated or 0) <= budget
        module(small)
        assert fitted.session.resident_bytes < much
        for _ in range(4):
            module(small)
        assert fitted.session.resident_bytes > 0.98 * much
        assert not fitted.attempts
    tightfit.unfit(module)


@pytest.mark.parametrize("after", [0, 5, 20])
def test_a_call_that_runs_out_of_memory_is_made_again_with_fewer_weights(after: int) -> None:
    """The same bits, the same random numbers, and a note; the failed try is released."""
    module, x = network(), inputs()
    module.blocks.insert(1, nn.Sequential(nn.Dropout(0.5)))
    module.train()
    torch.manual_seed(5)
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=bytes_of(module) + 64 * KIB, example=(x,))
        torch.manual_seed(5)
        card.faults.planned.append(Planned(after))
        assert torch.equal(module(x).cpu(), expected)
    fitted = tightfit.fitted(module)
    assert [attempt.outcome for attempt in fitted.attempts] == ["ok"]
    assert any("ran out of memory" in note for note in fitted.notes)
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_what_cannot_fit_is_said_and_leaves_the_module_usable() -> None:
    """A call that is too large for the card is refused with figures; a smaller one works."""
    module, x = network(), inputs()
    card = opened("200KiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,))
        with pytest.raises(MemoryShortage, match="Not enough memory to run Net"):
            module(inputs(4096))
        assert torch.isfinite(module(x).cpu()).all()
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_an_error_of_the_module_passes_through_once() -> None:
    """It is not taken for a shortage, and nothing is tried again."""
    module, x = network(), inputs()
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="120KiB", example=(x,))
        with pytest.raises(RuntimeError, match="shapes"):
            module(torch.randn(2, WIDTH + 1))
        assert torch.isfinite(module(x).cpu()).all()
    assert tightfit.fitted(module).attempts == []
    tightfit.unfit(module)


class Looking(nn.Module):
    """Code that looks at values cannot be dry-run."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
            if float(x.sum()) > 1e9:
                break
        return x


def test_code_that_looks_at_values_is_learnt_from_its_first_call() -> None:
    """A quarter of the room is kept until then, and a note says why."""
    torch.manual_seed(0)
    module, x = Looking().eval(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="80KiB", example=(x,))
        for _ in range(6):
            assert torch.equal(module(x).cpu(), expected)
    fitted = tightfit.fitted(module)
    assert any("could not be told beforehand" in note for note in fitted.notes)
    tightfit.unfit(module)


class Coder(nn.Module):
    """Is used through methods, as autoencoders are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = network((0, 1)), network((0, 2))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.encoder(x)
        return result

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.decoder(x)
        return result


def test_methods_of_an_autoencoder_are_ways_in_too() -> None:
    """`encode` and `decode` stream, and are the module's own again afterwards."""
    module, x = Coder().eval(), inputs()
    encoded = wanted(module, lambda card: module.encode(x.to(card.device)))
    decoded = wanted(module, lambda card: module.decode(x.to(card.device)))
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="120KiB", example=(x,), method="decode")
        assert torch.equal(module.encode(x).cpu(), encoded)
        assert torch.equal(module.decode(x).cpu(), decoded)
    tightfit.unfit(module)
    assert "decode" not in vars(module)
    assert card.read().allocated == 0


def test_threads_take_turns() -> None:
    """Each gets its own result."""
    module = network()
    rows = (4, 8, 12)
    expected = {
        n: wanted(module, lambda card, n=n: module(inputs(n).to(card.device)))  # type: ignore[misc]
        for n in rows
    }
    card = opened("64MiB")
    found: dict[int, torch.Tensor] = {}

    def work(n: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                found[n] = module(inputs(n)).cpu()

    tightfit.fit(module, card=card, vram="120KiB", example=(inputs(),))
    threads = [threading.Thread(target=work, args=(n,)) for n in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tightfit.unfit(module)
    assert all(torch.equal(found[n], expected[n]) for n in rows)


def test_an_interrupt_leaves_the_module_usable() -> None:
    """Ctrl-C in a block: the next call is right, and `unfit` gives everything back."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        tightfit.fit(module, card=card, vram="120KiB", example=(x,))
        hook = module.blocks[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            module(x)
        hook.remove()
        assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert card.read().allocated == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "fast"}, "mode `fast`"),
        ({"vram": "lots"}, "lots"),
        ({"vram": "128MiB"}, "above what"),
        ({"reserve": -1}, "below zero"),
        ({"method": "sample"}, "method `sample`"),
        ({"example": "x"}, "example is a str"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    """By name, before anything is touched."""
    module = network()
    with pytest.raises(UsageError, match=said):
        tightfit.fit(module, card=opened("64MiB"), **options)
    assert next(module.parameters()).device.type == "cpu"
    with pytest.raises(UsageError, match="is not fitted"):
        tightfit.fitted(module)


def test_fit_and_unfit_each_once() -> None:
    """A module is fitted once, and a pipeline is none."""
    module = network()
    tightfit.fit(module, card=opened("64MiB"), example=(inputs(),))
    with pytest.raises(UsageError, match="fitted already"):
        tightfit.fit(module, card=opened("64MiB"))
    tightfit.unfit(module)
    with pytest.raises(UsageError, match="is not fitted"):
        tightfit.unfit(module)
    pipeline: Any = object()
    with pytest.raises(UsageError, match="pipeline of diffusers"):
        tightfit.fit(pipeline, card=opened("64MiB"))


def test_a_plan_is_kept_to_with_placed() -> None:
    """The weights lie as the plan says, for whoever made it."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    tightfit.fit(module, card=card, vram="120KiB", example=(x,))
    plan = tightfit.fitted(module).plan
    tightfit.unfit(module)
    with tightfit.placed(module, plan, card=card) as kept, torch.no_grad():
        assert torch.equal(module(x).cpu(), expected)
        assert kept.session.residency == plan.stages[0].residency
        with pytest.raises(UsageError, match="fitted already"):
            tightfit.fit(module, card=card)
    assert card.read().allocated == 0
    with pytest.raises(UsageError, match="no stage"), tightfit.placed(module, plan, stage="paint"):
        pass


@given(
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    room=st.integers(0, 100),
    rows=st.lists(st.sampled_from((4, 8, 64, 128)), min_size=1, max_size=5),
    others=st.lists(st.integers(-40, 40), min_size=5, max_size=5),
)
def test_whatever_happens_between_calls_the_bits_are_those_of_the_resident_run(
    kinds: list[int], room: int, rows: list[int], others: list[int]
) -> None:
    """Random networks, budgets, shapes, and another program that takes and gives memory."""
    module = network(tuple(kinds))
    card = opened("1MiB")
    expected = {n: wanted(module, lambda c, n=n: module(inputs(n).to(c.device))) for n in rows}  # type: ignore[misc]
    taken = 0
    with torch.no_grad():
        try:
            tightfit.fit(
                module, card=card, vram=96 * KIB + room * 4 * KIB, example=(inputs(rows[0]),)
            )
        except MemoryShortage:
            assert card.read().allocated == 0
            return
        for n, other in zip(rows, others, strict=False):
            change = max(-taken, other * 4 * KIB)
            free = card.read().free or 0
            if change > 0:
                card.occupy(min(change, free))
                taken += min(change, free)
            else:
                card.vacate(-change)
                taken += change
            try:
                assert torch.equal(module(inputs(n)).cpu(), expected[n])
            except MemoryShortage:
                continue
    tightfit.unfit(module)
    assert card.read().allocated == 0
    assert card.hazards == ()
    assert (card.read().peak_reserved or 0) <= MIB


def test_weights_that_cannot_stream_stay() -> None:
    """Views of the same bytes, and what is used while only the whole is called."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.turned = nn.Linear(WIDTH, WIDTH, bias=False)
            self.turned.weight = nn.Parameter(self.one.weight.detach().T)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = torch.tanh(block(x))
            return self.turned(self.one(x)) @ self.two.weight

    torch.manual_seed(0)
    module, x = Root().eval(), inputs()
    with torch.no_grad():
        expected = module(x)
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="110KiB", example=(x,))
        assert torch.equal(module(x).cpu(), expected)
    stage = tightfit.fitted(module).plan.stages[0]
    assert stage.streamed
    assert set(stage.must_stay) == {"one", "two"}  # the turned one has no bytes of its own
    assert "while no module but the whole is called" in stage.must_stay["two"]
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_what_was_done_is_explained_and_each_step_traced() -> None:
    """The plan, each move of weights with its reason, and the bytes of each step."""
    module, x = network(), inputs()
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram="120KiB", example=(x,), traces=True, compares=True)
        module(x)
        module(x)
    fitted = tightfit.fitted(module)
    said = fitted.explain()
    assert "weights, resident" in said
    assert "at the start: 0 B -> " in said
    moved = sum(group.layout.bytes for group in fitted.session.groups if not group.stays)
    assert len(fitted.session.steps) == 2
    assert fitted.session.steps[-1].moved_bytes == moved
    tightfit.unfit(module)
