"""What happens when a virtual card is full, or made to fail: before, during and after."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
from torch.nn import functional

from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.testing import Form, faults, oom_after
from tightfit.units import MIB

OOM_FORMS = [form for form in Form if form is not Form.ILLEGAL_ACCESS]


@pytest.fixture
def card() -> VirtualCard:
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


@pytest.fixture
def no_collector() -> Iterator[None]:
    """The collector is off: what a cycle holds stays."""
    gc.disable()
    yield
    gc.enable()


def zeros(card: VirtualCard, mib: int) -> torch.Tensor:
    return torch.zeros(mib * MIB // 4, device=card.device)


REQUESTS: dict[str, Callable[[VirtualCard, torch.Tensor], object]] = {
    "zeros": lambda card, _: zeros(card, 256),
    "empty": lambda card, _: torch.empty(2**50, device=card.device),
    "to": lambda card, _: torch.zeros(1).expand(2**26).contiguous().to(card.device),
    "add": lambda _, x: x.expand(64, -1) + 1,
    "clone": lambda _, x: x.expand(64, -1).contiguous(),
    "matmul": lambda _, x: torch.bmm(*[x.view(1, 1024, 1024).expand(32, -1, -1)] * 2),
    "conv": lambda card, x: functional.conv2d(
        x.view(1, 4, 512, 512), torch.zeros(512, 4, 1, 1, device=card.device)
    ),
    "two results": lambda _, x: x.expand(6, -1).sort(),
    "data-dependent": lambda _, x: (x.expand(8, -1) == 0).nonzero(),
    "resize": lambda _, x: x[:0].clone().resize_(2**26),
    "out": lambda _, x: torch.cat([x] * 64, out=x[:0].clone()),
    "half": lambda _, x: x.expand(64, -1).to(torch.float16) @ x[:4].half().view(4, 1),
}


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.usefixtures("no_collector")
def test_a_refusal_holds_nothing_once_it_is_handled(request_of: str, card: VirtualCard) -> None:
    """The caller's tensors are alive in the handler, and gone right after it, no collection."""

    def work() -> object:
        x = zeros(card, 4)
        return REQUESTS[request_of](card, x)

    with pytest.raises(torch.OutOfMemoryError):
        work()
    inside = -1
    try:
        work()
    except torch.OutOfMemoryError:
        inside = card.read().allocated or 0
    assert inside >= 4 * MIB
    assert card.read().allocated == 0
    card.check()


@pytest.mark.parametrize("request_of", REQUESTS)
def test_a_card_is_never_over_its_size(request_of: str, card: VirtualCard) -> None:
    """A request is refused before anything is taken for it: no reading is above the total."""
    seen: list[int] = []
    x = zeros(card, 4)
    with card.observe(lambda allocated, _: seen.append(allocated)), suppress(RuntimeError):
        REQUESTS[request_of](card, x)
    assert max(seen) <= 64 * MIB
    assert card.read().peak_reserved <= 64 * MIB


def test_the_room_is_used_to_the_last_byte(card: VirtualCard) -> None:
    """What fits exactly is granted, 512 bytes more are not."""
    x = zeros(card, 32)
    y = x + 1
    assert card.read().allocated == 64 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1, device=card.device)
    del y
    assert (x + 1).numel() == x.numel()


def test_a_refused_operator_has_no_effect(card: VirtualCard) -> None:
    """Values, figures and books are as before; the next request that fits succeeds."""
    x = zeros(card, 40)
    before = card.read()
    with pytest.raises(torch.OutOfMemoryError):
        x + 1
    after = card.read()
    assert (after.allocated, after.peak_allocated) == (before.allocated, before.peak_allocated)
    assert x.add_(1).sum().item() == x.numel()


def work_of_all_kinds(card: VirtualCard) -> float:
    """Eight allocations or more: factories, arithmetic, moves, data-dependent results."""
    a = torch.zeros(2**18, device=card.device)
    b = (a + 1).view(512, 512)
    c = b @ b
    d = torch.ones(2**16).to(card.device)
    e = torch.empty(2**16, device=card.device).fill_(1)
    f = (c > 0).nonzero()
    return (c.sum() + d.sum() + e.sum()).item() + f.shape[0]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("form", list(Form))
@pytest.mark.usefixtures("no_collector")
def test_a_planted_fault_strikes_once_in_its_form(
    form: Form, late: bool, card: VirtualCard
) -> None:
    """At each allocation in turn: the error comes, nothing is left, and the next run succeeds."""
    expected = work_of_all_kinds(card)
    for at in range(8):
        with oom_after(card, at, form=form, late=late):
            with pytest.raises(RuntimeError) as caught:
                work_of_all_kinds(card)
            assert isinstance(caught.value, torch.OutOfMemoryError) == (form is Form.TORCH)
            del caught
            assert card.read().allocated == 0
            card.check()
            assert work_of_all_kinds(card) == expected


@pytest.mark.parametrize("form", OOM_FORMS)
def test_an_out_of_memory_of_any_form_is_counted(form: Form, card: VirtualCard) -> None:
    """`refusals` counts what a real allocator counts; an illegal access is none."""
    with oom_after(card, 0, form=form), suppress(RuntimeError):
        zeros(card, 1)
    assert card.read().refusals == 1
    with oom_after(card, 0, form=Form.ILLEGAL_ACCESS), suppress(RuntimeError):
        zeros(card, 1)
    assert card.read().refusals == 1


def test_a_late_fault_waits_for_a_synchronisation(card: VirtualCard) -> None:
    """The allocation that it struck succeeds; the wait raises, once."""
    with oom_after(card, 0, late=True):
        x = zeros(card, 1)
    assert (x + 1).shape == x.shape
    with pytest.raises(torch.OutOfMemoryError):
        card.sync()
    card.sync()


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x == 0).all()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "copy to host": lambda x: torch.zeros(4).copy_(x[:4]),
    "torch.vcard.synchronize": lambda x: torch.vcard.synchronize(x.device),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_late_fault_surfaces_where_the_host_waits(wait: str, card: VirtualCard) -> None:
    """Anything that needs a value on the host waits for the device."""
    x = zeros(card, 1)
    with oom_after(card, 0, form=Form.CUDA_TEXT, late=True):
        y = x + 1
    with pytest.raises(RuntimeError, match="out of memory"):
        WAITS[wait](y)


def test_spill_mode_grants_more_than_the_card_has_and_says_so(card: VirtualCard) -> None:
    """Over the size requests succeed and are tagged, as a driver that pages to the host does."""
    with faults(card, spill=True):
        x = zeros(card, 60)
        assert card.spilled == 0
        y = x + 1
        assert card.spilled == 56 * MIB
        card.check()
        del x, y
    with pytest.raises(torch.OutOfMemoryError):
        zeros(card, 65)


def test_a10_a_budget_is_kept_in_spill_mode(card: VirtualCard) -> None:
    """Our own ceiling refuses what the driver would grant, so that nothing is ever tagged."""
    with faults(card, spill=True), card.cap(64 * MIB):
        with pytest.raises(torch.OutOfMemoryError):
            zeros(card, 65)
        assert card.spilled == 0


def test_a_single_allocation_above_the_limit_is_refused(card: VirtualCard) -> None:
    """However much is free; smaller ones go on."""
    with faults(card, max_allocation=16 * MIB):
        kept = [zeros(card, 16), zeros(card, 16)]
        with pytest.raises(torch.OutOfMemoryError, match=r"largest single allocation, 16\.0 MiB"):
            zeros(card, 17)
        assert card.read().refusals == 1
    kept.append(zeros(card, 17))


def test_results_above_the_element_ceiling_are_zeros(card: VirtualCard) -> None:
    """No error: that is the point. Inputs are left alone."""
    x = torch.ones(2048, device=card.device)
    with faults(card, element_ceiling=1024):
        assert (x + 1).abs().sum().item() == 0
        assert (x[:1024] + 1).sum().item() == 2048
    assert x.sum().item() == 2048


def conv(card: VirtualCard, x: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, torch.ones(4, 4, 3, 3, device=card.device))


def three_times_conv_inputs(operator: str, size: int) -> int:
    return 3 * size if "convolution" in operator else 0


def test_hidden_workspace_is_in_the_peak_and_gone_after(card: VirtualCard) -> None:
    """It lives while the operator runs, beside its result."""
    x = torch.randn(1, 4, 256, 256, device=card.device)
    card.reset_peaks()
    conv(card, x)
    plain = card.read().peak_allocated or 0
    with faults(card, workspace=three_times_conv_inputs):
        card.reset_peaks()
        conv(card, x)
        assert (card.read().peak_allocated or 0) - plain >= 3 * MIB
    del x
    assert card.read().allocated == 0


def test_a_refused_workspace_is_an_error_where_it_is_not_silent(card: VirtualCard) -> None:
    """Out of memory in an operator whose operands and results fit."""
    x = torch.randn(1, 4, 1024, 1024, device=card.device)
    conv(card, x)
    with faults(card, workspace=three_times_conv_inputs), pytest.raises(torch.OutOfMemoryError):
        conv(card, x)
    assert card.read().allocated == x.nbytes


def test_a_refused_workspace_changes_bits_and_only_a_count_tells(card: VirtualCard) -> None:
    """As a convolution library does: another algorithm, other bits, no exception."""
    x = torch.randn(1, 4, 1024, 1024, device=card.device)
    expected = conv(card, x).cpu()
    with faults(card, workspace=three_times_conv_inputs, silent_workspace=True):
        changed = conv(card, x).cpu()
        assert card.read().refusals == 1
        small = conv(card, x[:, :, :64, :64].clone()).cpu()
    assert not torch.equal(changed, expected)
    torch.testing.assert_close(changed, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(small, conv(card, x[:, :, :64, :64].clone()).cpu())


def test_everybody_can_watch_allocations(card: VirtualCard) -> None:
    """A hook is told of each request before it is served, and may raise."""
    seen: list[tuple[str, int]] = []
    with faults(card, on_allocate=lambda operator, size: seen.append((operator, size))):
        zeros(card, 1) + 1
    assert [size for _, size in seen] == [MIB, MIB]
    assert "add" in seen[1][0]
