"""`fit` where it is used in ways that nobody had in mind: nothing is lost without a word."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.test_fitting import WIDTH, bytes_of, inputs, opened, wanted
from tightfit.card import open_card
from tightfit.card.virtual.faults import Planned
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.placement import Placement
from tightfit.place.streaming.store import Store
from tightfit.run.fitting import lessons
from tightfit.run.job import Job, Request
from tightfit.testing import toy_vae
from tightfit.units import KIB, MIB


class Row(nn.Module):
    """Layers one after the other."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x + self.shift


def row(kind: type[Row] = Row, count: int = 6) -> Any:
    torch.manual_seed(0)
    return kind(count).eval().requires_grad_(False)


class Drawing(Row):
    """Draws random numbers on the host."""

    def forward(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=generator, device="cpu")
        return super().forward(x + noise.to(x.device))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_draws_the_numbers_it_would_have_drawn(own: bool, fails: bool) -> None:
    """A dry run and a failed try draw none: neither of the global generator nor of one given."""
    module, x = row(Drawing), inputs()
    generator = torch.Generator() if own else torch.default_generator
    given = (generator,) if own else ()
    generator.manual_seed(3)
    expected = wanted(module, lambda card: module(x.to(card.device), *given))
    after = generator.get_state()
    card = opened("64MiB")
    generator.manual_seed(3)
    tightfit.fit(module, card=card, vram="80KiB")
    if fails:
        card.faults.planned.append(Planned(20))
    assert torch.equal(module(x, *given).cpu(), expected)
    assert torch.equal(generator.get_state(), after)
    tightfit.unfit(module)
    assert torch.equal(generator.get_state(), after)


class Cache:
    """An object of the caller's that calls write into."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


class Remembering(Row):
    """Counts its calls, keeps a list, a table and a set, and writes to what it is given."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.calls = 0
        self.seen: list[str] = []
        self.by_kind: dict[str, int] = {}
        self.kinds: set[str] = set()

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        kind = x.device.type
        self.calls += 1
        self.seen.append(kind)
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
        self.kinds.add(kind)
        self.latest = x
        cache.kept.append(x)
        return super().forward(x)


def test_a_dry_run_leaves_no_trace_on_the_module_or_on_what_it_is_given() -> None:
    """Counters, containers and objects are as if only real calls had been made."""
    module, cache, x = row(Remembering), Cache(), inputs()
    seen = module.seen
    card = opened("64MiB")
    tightfit.fit(module, card=card, vram="80KiB", example=(x, cache))
    assert module.calls == 0
    assert not hasattr(module, "latest")
    for _ in range(2):
        module(x, cache)
    kind = card.device.type
    assert module.calls == 2
    assert module.seen is seen
    assert seen == [kind, kind]
    assert module.by_kind == {kind: 2}
    assert module.kinds == {kind}
    assert [kept.device for kept in cache.kept] == [card.device] * 2
    tightfit.unfit(module)


def _load(module: Any) -> None:
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})


def _assign(module: Any) -> None:
    module.load_state_dict(module.state_dict(), assign=True)


@pytest.mark.parametrize("vram", ["80KiB", "1MiB"])
@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.half(),
        lambda module: module.to(torch.float64),
        lambda module: module.blocks[1].to("cpu", torch.float64),
        lambda module: nn.Sequential(module).to("cpu", torch.float16),
        lambda module: module.to("meta"),
        _load,
        _assign,
    ],
)
def test_what_would_spoil_weights_is_refused(vram: str, change: Callable[[Any], None]) -> None:
    """Conversions and state dicts, resident or not; then calls and `unfit` are as ever."""
    module, x = row(), inputs()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = wanted(module, lambda card: module(x.to(card.device)))
    tightfit.fit(module, card=opened("2MiB"), vram=vram, example=(x,))
    with pytest.raises(UsageError, match="is fitted, so "):
        change(module)
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    change(module)


def test_a_conversion_that_changes_nothing_passes() -> None:
    """As `pipe.to("cuda")` and `module.float()` do, for the sake of other parts."""
    module, x = row(), inputs()
    card = opened("2MiB")
    expected = wanted(module, lambda large: module(x.to(large.device)))
    tightfit.fit(module, card=card, vram="80KiB", example=(x,))
    assert module.to(card.device).float() is module
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)


@pytest.mark.parametrize("vram", ["80KiB", "1MiB"])
def test_moves_to_the_card_and_to_the_host_pass_and_are_told(vram: str) -> None:
    """As pipelines move a part around its calls: nothing is done, and its calls are as ever."""
    module, x = row(), inputs()
    card = opened("2MiB")
    expected = wanted(module, lambda large: module(x.to(large.device)))
    tightfit.fit(module, card=card, vram=vram, example=(x,))
    for _ in range(2):
        before = card.read().allocated
        assert module.to(card.device) is module
        nn.Sequential(module).cpu()
        module.blocks[1].to("cpu")
        assert card.read().allocated == before
        assert torch.equal(module(x).cpu(), expected)
    told = [note for note in tightfit.fitted(module).notes if "`.to()`" in note]
    assert len(told) == 1
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_after_a_first_call_that_was_too_large_others_work() -> None:
    """Without an example, weights are placed anew in the first call, which may fail at that."""
    module, x = row(), inputs()
    card = opened("2MiB")
    expected = wanted(module, lambda large: module(x.to(large.device)))
    tightfit.fit(module, card=card, vram="80KiB")
    with pytest.raises(MemoryShortage, match="Not enough memory to run Row"):
        module(inputs(4096))
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert card.read().allocated == 0


class Named(Row):
    """Has a layer by the name of a method."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.encode = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.encode(x)) * self.encode.in_features


def test_a_layer_called_encode_is_no_way_in() -> None:
    """It stays the module that it is."""
    module, x = row(Named), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    tightfit.fit(module, card=opened("2MiB"), vram="100KiB", example=(x,))
    assert isinstance(module.encode, nn.Linear)
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert "encode" not in vars(module)
    assert bytes_of(module) > 0


class Timed(Row):
    """Takes a number, which may be a size."""

    def forward(self, x: torch.Tensor, number: int, *, sizes: bool = False) -> torch.Tensor:
        if sizes:
            x = x.repeat(number, 1)
        return super().forward(x) * number


def dry_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with each dry run from now on."""
    found: list[Any] = []

    def noted(plain: Callable[..., Any], module: nn.Module, call: Any, card: Any) -> Any:
        found.append(call)
        return plain(module, call, card)

    for name in ("need_of", "need_and_order"):
        monkeypatch.setattr(lessons, name, partial(noted, getattr(lessons, name)))
    return found


def test_a_time_that_changes_with_each_call_is_not_weighed_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three integers that make no difference are enough, and nothing grows with their number."""
    module, x = row(Timed), inputs()
    expected = {t: wanted(module, lambda c, t=t: module(x.to(c.device), t)) for t in range(20)}
    tightfit.fit(module, card=opened("2MiB"), vram="80KiB")
    runs = dry_runs(monkeypatch)
    for t in range(20):
        assert torch.equal(module(x, t).cpu(), expected[t])
    assert len(runs) == 3
    tightfit.unfit(module)


def test_an_integer_that_is_a_size_is_weighed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call runs full first."""
    module, x = row(Timed), inputs()
    card = opened("2MiB")
    tightfit.fit(module, card=card, vram="120KiB")
    runs = dry_runs(monkeypatch)
    for n in (1, 2, 3, 4, 5, 6):
        module(x, n, sizes=True)
    assert len(runs) == 6
    assert tightfit.fitted(module).attempts == []
    assert (card.read().peak_allocated or 0) <= 120 * KIB
    tightfit.unfit(module)


def test_inputs_that_are_brought_to_the_card_are_counted_once() -> None:
    """What a call was seen to take moves no weights before the next one."""
    module, x = row(), inputs(64)
    card = opened("2MiB")
    tightfit.fit(module, card=card, vram="130KiB", example=(x,))
    for _ in range(3):
        module(x)
    fitted = tightfit.fitted(module)
    assert [change.why for change in fitted.changes] == ["it was fitted"]
    assert fitted.session.copies.count > 0
    tightfit.unfit(module)


def test_without_an_example_what_the_first_call_leaves_room_for_is_not_refused() -> None:
    """The quarter that is kept for a call of which nothing is known is only a guess."""
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4096)).eval()
    x, least = inputs(1), bytes_of(module[1]) + 64 * KIB
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("4MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=least)
        assert torch.equal(module(x).cpu(), expected)
    assert (card.read().peak_allocated or 0) <= least
    tightfit.unfit(module)


def test_a_layer_larger_than_the_budget_is_said_when_it_is_fitted() -> None:
    """It cannot be split, so the figures tell what it takes; the module stays usable."""
    module: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4096))
    card = opened("4MiB")
    for example in (None, (inputs(),)):
        with pytest.raises(MemoryShortage, match="Not enough memory to run Sequential"):
            tightfit.fit(module, card=card, vram="300KiB", example=example)
        assert card.read().allocated == 0
        assert module(inputs()).requires_grad
    tightfit.fit(module, card=card, example=(inputs(),))
    assert module(inputs()).device == card.device
    tightfit.unfit(module)


def test_parts_of_what_is_fitted_are_refused_by_path() -> None:
    """And what has a part that is fitted."""
    module, card = row(), opened("2MiB")
    tightfit.fit(module.blocks[1], card=card)
    with pytest.raises(UsageError, match=r"`blocks\.1` is a part of `Row`, and it is fitted"):
        tightfit.fit(module, card=card)
    tightfit.unfit(module.blocks[1])
    tightfit.fit(module, card=card)
    with pytest.raises(UsageError, match=r"`blocks\.1` is a part of `Row`, and that is fitted"):
        tightfit.fit(module.blocks[1], card=card)
    tightfit.unfit(module)
    assert card.read().allocated == 0


class Crowded(Row):
    """Is called in several threads; how many calls were under way at once at most is counted."""

    under_way: list[int] = []  # noqa: RUF012
    most = 0
    came = threading.Barrier(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Crowded.under_way.append(1)
        Crowded.most = max(Crowded.most, len(Crowded.under_way))
        with suppress(threading.BrokenBarrierError):
            Crowded.came.wait(0.1)  # for a call that should not come
        Crowded.came.reset()
        Crowded.under_way.pop()
        return super().forward(x)


def test_calls_of_two_modules_on_one_card_come_one_after_the_other() -> None:
    """Peaks, caps and what was taken belong to the card: each would measure the other's."""
    card, x = opened("2MiB"), inputs()
    plain, both = row(), [row(Crowded), row(Crowded)]
    expected = wanted(plain, lambda large: plain(x.to(large.device)))
    for module in both:
        tightfit.fit(module, card=card, example=(x,))
    Crowded.most = 0
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda module: module(x).cpu(), both))
    assert Crowded.most == 1
    assert all(torch.equal(each, expected) for each in made)
    for module in both:
        tightfit.unfit(module)


def test_an_example_of_a_method_that_is_not_there_is_refused() -> None:
    """Not noted as a dry run that failed."""
    with pytest.raises(UsageError, match="`Row` has no method `decode`"):
        tightfit.fit(row(), card=opened("2MiB"), example=(inputs(),), method="decode")


def test_what_is_fitted_is_shown_in_a_line() -> None:
    """Its plan and weights are hundreds of lines."""
    module, card = row(), opened("2MiB")
    tightfit.fit(module, card=card, example=(inputs(),))
    fitted = tightfit.fitted(module)
    assert len(repr(fitted)) < 100
    assert "Row" in repr(fitted)
    tightfit.unfit(module)
    assert "no weights there" in repr(fitted)


@pytest.mark.parametrize("size", ["140KiB", "200KiB", "512KiB"])
def test_two_modules_share_a_card(size: str) -> None:
    """The second has what the first leaves, and what it gives back later; the bits never change."""
    one, other, x = row(), row(count=12), inputs()
    expected = {m: wanted(m, lambda card, m=m: m(x.to(card.device))) for m in (one, other)}
    card = opened(size)
    tightfit.fit(one, card=card, example=(x,))
    tightfit.fit(other, card=card, example=(x,))
    before = tightfit.fitted(other).session.resident_bytes
    for _ in range(3):
        for module in (one, other):
            assert torch.equal(module(x).cpu(), expected[module])
    tightfit.unfit(one)
    for _ in range(6):
        assert torch.equal(other(x).cpu(), expected[other])
    after = tightfit.fitted(other).session.resident_bytes
    assert after > before or before >= bytes_of(other)
    tightfit.unfit(other)
    assert card.read().allocated == 0
    assert card.hazards == ()


@pytest.mark.parametrize("step", ["stay", "hide", "open_ring", "take_all", "close_rings"])
@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupt_while_weights_move_is_got_over(
    monkeypatch: pytest.MonkeyPatch, step: str, after: int
) -> None:
    """At the start, when they make way, and when they come back."""
    module, x = row(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("2MiB")
    holder: Any = Store if step == "take_all" else Placement
    plain, left = getattr(holder, step), [-1]

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    def through(call: Callable[[], object]) -> None:
        left[0] = after
        with suppress(KeyboardInterrupt):
            for _ in range(6):
                call()
        left[0] = -1

    monkeypatch.setattr(holder, step, interrupted)

    def start() -> None:
        if not module_is_fitted(module):
            tightfit.fit(module, card=card, vram="160KiB", example=(x,))

    through(start)
    if not module_is_fitted(module):
        assert card.read().allocated == 0
        assert module(x).device.type == "cpu"
    start()
    taken = (card.read().free or 0) - 16 * KIB
    for change in (card.occupy, card.vacate):
        change(taken)
        through(lambda: module(x))
        for _ in range(6):
            assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert card.read().allocated == 0
    assert torch.isfinite(module(x)).all()


def module_is_fitted(module: nn.Module) -> bool:
    with suppress(UsageError):
        return tightfit.fitted(module) is not None
    return False


class Reaching(Row):
    """Looks at values, so that no dry run can tell, and reaches for the weight of a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if float(x.sum()) > 1e9:
            return x
        return nn.functional.linear(x, self.blocks[1].weight)  # type: ignore[arg-type]


def test_a_weight_that_is_used_while_it_is_away_is_never_taken_for_nan() -> None:
    """What could not be told beforehand is seen in the first call; with all resident it works."""
    module, x = row(Reaching), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("2MiB")
    tightfit.fit(module, card=card, mode="none", example=(x,))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"`blocks\.1\.weight` is used while"):
            module(x)
    tightfit.unfit(module)
    tightfit.fit(module, card=card, mode="high", example=(x,))
    assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert card.read().allocated == 0


@pytest.mark.parametrize("example", [False, True])
def test_modes_of_the_caller_do_not_stay_in_the_weights(example: bool) -> None:
    """Fitted and called in inference mode, unfitted outside, and trained then."""
    module, x = row().requires_grad_(True), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)).detach())
    card = opened("2MiB")
    with torch.inference_mode():
        tightfit.fit(module, card=card, vram="80KiB", example=(x,) if example else None)
        assert torch.equal(module(x).cpu(), expected)
    with torch.no_grad():
        assert torch.equal(module(x).cpu(), expected)
    assert torch.equal(module(x).cpu(), expected)
    with pytest.raises(UsageError, match="an input requires one"):
        module(inputs().requires_grad_())
    tightfit.unfit(module)
    module(x).sum().backward()
    assert all(p.grad is not None and not p.is_inference() for p in module.parameters())
    assert card.read().allocated == 0


class Empty(nn.Module):
    """Has no weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("mode", ["auto", "high", "low", "none"])
def test_modules_of_hardly_anything_are_fitted_too(mode: str) -> None:
    """No weights, or buffers alone; in each mode."""
    x = inputs()
    for module in (Empty(), row(count=0)):
        card = opened("2MiB")
        expected = wanted(module, lambda large, m=module: m(x.to(large.device)))
        for example in (None, (x,)):
            tightfit.fit(module, card=card, mode=mode, example=example)
            assert torch.equal(module(x).cpu(), expected)
            assert module(x.to(card.device)).device == card.device
            tightfit.unfit(module)
            assert card.read().allocated == 0


class Nested(Row):
    """Takes tensors in containers, and gives an object."""

    def forward(self, given: Any, *, scale: float = 1.0, also: Any = None) -> Any:
        x = super().forward(given["a"][0] + given["b"]["c"])
        return Cached(x * scale, also)


class Cached:
    """An output that is no tensor."""

    def __init__(self, sample: torch.Tensor, also: Any) -> None:
        self.sample, self.also = sample, also


def test_arguments_in_containers_are_brought_and_outputs_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tuples, dicts, None and numbers; a scale that changes is not weighed anew."""
    module, x = row(Nested), inputs()

    def call(of: Callable[[torch.Tensor], torch.Tensor], scale: float) -> Any:
        return module({"a": (of(x), None), "b": {"c": of(x)}}, scale=scale, also=[of(x)])

    expected = wanted(module, lambda card: call(lambda t: t.to(card.device), 0.5).sample)
    card = opened("2MiB")
    tightfit.fit(module, card=card, vram="100KiB")
    runs = dry_runs(monkeypatch)
    for scale in (0.25, 0.125, 0.5):
        result = call(lambda t: t, scale)
    assert len(runs) == 1
    assert isinstance(result, Cached)
    assert torch.equal(result.sample.cpu(), expected)
    assert result.also[0].device == card.device
    assert torch.equal(call(lambda t: t.to(card.device), 0.5).sample.cpu(), expected)
    tightfit.unfit(module)


class Leaving(Row):
    """Is unfitted in the middle of its call, once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "vcard":
            tightfit.unfit(self)
        return super().forward(x)


def test_unfit_from_within_a_call_is_refused() -> None:
    """And changes nothing."""
    module, x = row(Leaving), inputs()
    tightfit.fit(module, card=opened("2MiB"), vram="80KiB", example=(x,))
    with pytest.raises(UsageError, match="is being called: unfit it after"):
        module(x)
    tightfit.unfit(module)
    assert module(x).device.type == "cpu"


class Counting(Row):
    """Writes to a buffer in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shift += 1
        return super().forward(x)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("vram", ["80KiB", "1MiB"])
def test_buffers_that_calls_write_to_are_refused_by_path(inference: bool, vram: str) -> None:
    """What is written to a copy would be lost; a norm in evaluation writes nothing."""
    module, x = row(Counting), inputs()
    card = opened("2MiB")
    norm: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    with torch.inference_mode(inference):
        with pytest.raises(UsageError, match="`shift` is written to in calls of `Counting`"):
            tightfit.fit(module, card=card, vram=vram, example=(x,))
        tightfit.fit(module, card=card, vram=vram)
        with pytest.raises(UsageError, match="`shift` is written to in calls of `Counting`"):
            module(x)
        tightfit.unfit(module)
        with pytest.raises(UsageError, match="call eval"):
            tightfit.fit(norm, card=card, example=(x,))
        tightfit.fit(norm.eval(), card=card, example=(x,))
        norm(x)
        tightfit.unfit(norm)
    assert card.read().allocated == 0


def test_a_module_that_was_made_in_inference_mode_is_refused() -> None:
    """PyTorch does not let its tensors change places; the module is as usable as it was."""
    x, card = inputs(), opened("2MiB")
    with torch.inference_mode():
        module = Row(6)
        expected = module(x)
    with pytest.raises(UsageError, match=r"`shift` was made in torch\.inference_mode"):
        tightfit.fit(module, card=card, example=(x,))
    assert card.read().allocated == 0
    with torch.inference_mode():
        assert torch.equal(module(x), expected)


def test_a_module_that_was_given_back_goes_when_nobody_has_it() -> None:
    """At once: in a cycle of ours its weights would stay until somebody collects."""
    gc.collect()
    gc.disable()
    try:
        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
        x = torch.rand(1, 64)
        tightfit.fit(module, card="virtual:1MiB", mode="none", example=(x,))
        module(x)
        tightfit.unfit(module)
        weight = weakref.ref(module[0].weight)
        del module
        assert weight() is None
        vae = toy_vae("V2N")
        Job(vae, "decode", open_card("virtual:64MiB"), Request(64 * MIB)).run(
            torch.rand(1, 4, 16, 16)
        )
        kept = weakref.ref(vae.module)
        del vae
        assert kept() is None
    finally:
        gc.enable()
