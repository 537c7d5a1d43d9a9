"""Tensors on a virtual card: values, identity, rebinding, ties, threads, halves, devices."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from tightfit.card import open_card, open_cards
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.keeper import charges
from tightfit.place import placed
from tightfit.testing import toy_vae
from tightfit.units import MIB
from tightfit.weigh import identity, weight_bytes


@pytest.fixture
def card() -> VirtualCard:
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


def frozen(value: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


# Values


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, 3, device=d),
        lambda d: torch.full((2, 3), 2.5, device=d),
        lambda d: torch.arange(5, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.tensor([1.0, 2.0], device=d),
        lambda d: torch.randn(4, device=d),
        lambda d: torch.randint(0, 9, (4,), device=d),
        lambda d: torch.randperm(6, device=d),
        lambda d: torch.zeros(2, 3).to(d).new_ones(4),
        lambda d: torch.rand_like(torch.zeros(4, device=d)),
        lambda d: torch.ones(3, device=d).nonzero(),
        lambda d: torch.arange(6.0, device=d)[torch.arange(6, device=d) > 2],
        lambda d: torch.arange(6, device=d).flip(0).sort().values,
        lambda d: torch.arange(6.0, device=d).view(2, 3).T.contiguous().unique(),
        lambda d: torch.cat([torch.ones(2, device=d), torch.zeros(2, device=d)]),
        lambda d: torch.einsum("ij,jk->ik", *[torch.ones(3, 3, device=d)] * 2),
        lambda d: torch.where(torch.arange(4, device=d) > 1, 1.0, torch.zeros(4, device=d)),
        lambda d: torch.ones(4, device=d).cumsum(0).clamp_(max=2),
        lambda d: torch.fft.rfft(torch.arange(8.0, device=d)).abs(),
        lambda d: functional.pixel_shuffle(torch.arange(16.0, device=d).view(1, 4, 2, 2), 2),
        lambda d: functional.interpolate(torch.ones(1, 1, 2, 2, device=d), scale_factor=2.0),
    ],
)
def test_operators_give_the_values_of_the_host(make: object, card: VirtualCard) -> None:
    """Factories, random draws, data-dependent results and the rest, and nothing is left behind."""
    torch.manual_seed(3)
    there = make(card.device)
    assert there.device == card.device
    torch.manual_seed(3)
    assert torch.equal(there.cpu(), make(torch.device("cpu")))
    del there
    assert card.read().allocated == 0
    card.check()


@pytest.mark.parametrize("name", ["V2", "V2N", "V2P", "V3", "VA"])
def test_a_network_gives_nearly_the_values_of_the_host(name: str, card: VirtualCard) -> None:
    """The same to rounding: composite operators may arrive decomposed."""
    vae = toy_vae(name)
    shape = {"V3": (1, 3, 5, 16, 16), "VA": (1, 2, 3840)}.get(name, (1, 3, 32, 48))
    source = torch.randn(shape)
    expected = vae.encode(source)
    with placed(vae.module, card.device), torch.no_grad():
        latent = vae.encode(source.to(card.device)).cpu()
    torch.testing.assert_close(latent, expected, rtol=1e-5, atol=1e-5)
    assert card.read().allocated == 0


def test_views_share_the_charge_of_their_base(card: VirtualCard) -> None:
    """A view costs nothing, keeps the storage alive, and writes through."""
    base = torch.zeros(4, 1024, device=card.device)
    view = base[1].view(32, 32).T
    assert card.read().allocated == base.nbytes
    del base
    assert card.read().allocated == 4 * 4096
    view.fill_(2)
    del view
    assert card.read().allocated == 0


def test_a_copy_to_the_host_shares_nothing(card: VirtualCard) -> None:
    """Writing into the copy leaves the card alone, and the copy costs the card nothing."""
    there = torch.zeros(8, device=card.device)
    here = there.cpu()
    here.fill_(1)
    assert there.sum().item() == 0
    assert not isinstance(there.to("cpu"), type(there))


def test_writing_in_place_and_across_devices(card: VirtualCard) -> None:
    """`copy_` goes both ways; slices write through."""
    there, here = torch.zeros(4, device=card.device), torch.zeros(4)
    there[1:3] = 5
    there[0].copy_(torch.tensor(7.0))
    here.copy_(there)
    assert here.tolist() == [7, 5, 5, 0]


def test_a_resized_tensor_is_charged_anew(card: VirtualCard) -> None:
    """Growing through `resize_` or `out=` is on the books, and so is its end."""
    tensor = torch.zeros(0, device=card.device)
    tensor.resize_(1024)
    assert (card.read().allocated, tensor.shape) == (4096, (1024,))
    torch.cat([torch.ones(4096, device=card.device)], out=tensor.resize_(0))
    assert tensor.sum().item() == 4096
    del tensor
    assert card.read().allocated == 0


def test_training_batch_norm_updates_its_running_figures(card: VirtualCard) -> None:
    """Operators that write into some arguments and return new results beside."""
    norm, on_card = nn.BatchNorm2d(3), nn.BatchNorm2d(3).to(card.device)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(on_card(x.to(card.device)).cpu(), norm(x))
    torch.testing.assert_close(on_card.running_mean.cpu(), norm.running_mean)


# Rebinding


def test_rebinding_data_keeps_identity_and_operators_read_the_new_values(card: VirtualCard) -> None:
    """`.data =` is the move that streaming is made of."""
    parameter = frozen(torch.zeros(3, device=card.device))
    key = id(parameter)
    assert (parameter + 1).cpu().tolist() == [1, 1, 1]
    parameter.data = torch.full((3,), 7.0, device=card.device)
    assert id(parameter) == key
    assert isinstance(parameter, nn.Parameter)
    assert (parameter + 1).cpu().tolist() == [8, 8, 8]
    assert parameter.detach().cpu().tolist() == [7, 7, 7]


def test_rebinding_to_another_shape_changes_what_operators_see(card: VirtualCard) -> None:
    """Shape, strides and dtype follow the new values."""
    parameter = frozen(torch.zeros(3, device=card.device))
    parameter.data = torch.arange(6.0, device=card.device).view(2, 3).T
    assert (parameter.shape, parameter.stride()) == ((3, 2), (1, 3))
    assert (parameter @ parameter.T).shape == (3, 3)
    parameter.data = torch.ones(2, dtype=torch.float16, device=card.device)
    assert (parameter * 2).dtype == torch.float16


def test_an_expanded_nan_stands_for_a_weight_that_is_away(card: VirtualCard) -> None:
    """512 bytes on the books, the true shape, NaN to whoever reads, an error to whoever writes."""
    parameter = frozen(torch.zeros(1024, 1024, device=card.device))
    parameter.data = torch.full((), torch.nan, device=card.device).expand(1024, 1024)
    assert card.read().allocated == 512
    assert parameter.shape == (1024, 1024)
    assert (parameter[:2] + 1).isnan().all().item()
    with pytest.raises(RuntimeError, match="single memory location"):
        parameter.mul_(2)


def test_rebinding_gives_the_old_bytes_back(card: VirtualCard) -> None:
    """The old storage is free as soon as nobody holds it."""
    parameter = frozen(torch.zeros(1024, device=card.device))
    parameter.data = torch.zeros(8, device=card.device)
    assert card.read().allocated == 512


def test_rebinding_inside_a_module_is_seen_by_its_forward(card: VirtualCard) -> None:
    """A linear layer multiplies with what its weight is bound to now."""
    layer = nn.Linear(4, 2, bias=False).requires_grad_(False).to(card.device)
    layer.weight.data = torch.ones(2, 4, device=card.device)
    assert layer(torch.ones(1, 4, device=card.device)).cpu().tolist() == [[4, 4]]


def test_rebinding_to_a_host_tensor_is_refused(card: VirtualCard) -> None:
    """The sentence says what to do."""
    parameter = frozen(torch.zeros(3, device=card.device))
    with pytest.raises(RuntimeError, match="move it first"):
        parameter.data = torch.zeros(3)


def test_a_host_parameter_is_brought_over_by_swapping(card: VirtualCard) -> None:
    """`swap_tensors` keeps the Parameter that everybody refers to; then it can be rebound."""
    parameter = frozen(torch.ones(4))
    key = id(parameter)
    torch.utils.swap_tensors(parameter, frozen(parameter.detach().to(card.device)))
    assert (id(parameter), parameter.device) == (key, card.device)
    parameter.data = torch.full((4,), 3.0, device=card.device)
    assert (parameter * 2).sum().item() == 24


# Modules


def test_a_module_moves_there_and_back(card: VirtualCard) -> None:
    """`module.to` works both ways, buffers included, and leaves nothing on the card."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    x = torch.randn(1, 3, 8, 8)
    expected = module(x)
    module.to(card.device)
    assert {t.device for t in module.state_dict().values()} == {card.device}
    torch.testing.assert_close(module(x.to(card.device)).cpu(), expected)
    module.to("cpu")
    assert card.read().allocated == 0
    torch.testing.assert_close(module(x), expected)


def test_ties_are_counted_once_and_stay_ties_when_placed(card: VirtualCard) -> None:
    """An Embedding tied to a Linear: one copy on the card, one identity, masters put back."""
    module = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 10, bias=False))
    module[1].weight = module[0].weight
    master = module[0].weight
    with placed(module, card.device):
        assert module[0].weight is module[1].weight
        assert module[0].weight.device == card.device
        assert card.read().allocated == weight_bytes(module) == 10 * 64 * 4
    assert module[0].weight is master is module[1].weight
    assert card.read().allocated == 0


def test_two_parameters_over_one_storage_are_one_identity(card: VirtualCard) -> None:
    """Ties are found by storage and layout, since every data pointer here is 0."""
    base = torch.zeros(4, 4, device=card.device)
    one, two, part = frozen(base), frozen(base), frozen(base[1:])
    assert identity(one) == identity(two)
    assert identity(one) != identity(part)
    assert identity(one) != identity(frozen(torch.zeros(4, 4, device=card.device)))


def test_a_deep_copy_is_a_copy_on_the_card(card: VirtualCard) -> None:
    """Parameters stay Parameters, with bytes of their own."""
    layer = nn.Linear(256, 256, bias=False).to(card.device)
    before = card.read().allocated
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter)
    assert card.read().allocated == 2 * before
    assert torch.equal(twin.weight.cpu(), layer.weight.cpu())


def test_a_state_dict_is_saved_as_ordinary_tensors(card: VirtualCard) -> None:
    """A file that was written from the card loads anywhere."""
    layer = nn.Linear(3, 3).to(card.device)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["weight"].device.type == "cpu"
    layer.load_state_dict(loaded)


@pytest.mark.usefixtures("no_cards")
def test_gradients_flow_on_the_first_card() -> None:
    """Autograd takes ``vcard:0`` alone: PyTorch's interface says that there is one device."""
    card = open_card("virtual:64MiB")
    layer = nn.Linear(3, 1).to(card.device)
    layer(torch.ones(2, 3, device=card.device)).sum().backward()
    assert layer.weight.grad.cpu().tolist() == [[2, 2, 2]]


# Threads, modes, generators


def test_the_card_works_in_another_thread(card: VirtualCard) -> None:
    """No mode is needed: factories, moves and arithmetic work in a plain thread."""
    answers: list[float] = []

    def work() -> None:
        there = torch.ones(3, device=card.device) + torch.ones(3).to(card.device)
        answers.append(there.sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [6.0]


def test_many_threads_keep_the_books_right(card: VirtualCard) -> None:
    """Charges and frees from four threads add up."""

    def work() -> None:
        for size in range(1, 60):
            (torch.zeros(size * 100, device=card.device) + 1).sum()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    card.check()
    assert card.read().allocated == 0


def test_inference_mode_gives_the_same_bits(card: VirtualCard) -> None:
    """Composite operators arrive whole there, and are taken apart."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()).to(card.device)
    x = torch.randn(1, 3, 8, 8, device=card.device)
    with torch.no_grad():
        expected = net(x).cpu()
    with torch.inference_mode():
        assert torch.equal(net(x).cpu(), expected)


def test_a_seeded_generator_draws_the_same_numbers(card: VirtualCard) -> None:
    """`card.generator` is accepted by random operators on the card."""
    draws = [torch.randn(8, generator=card.generator(5), device=card.device).cpu() for _ in "ab"]
    assert torch.equal(*draws)
    other = torch.randn(8, generator=card.generator(6), device=card.device).cpu()
    assert not torch.equal(draws[0], other)


def test_the_forecast_leaves_the_random_state_alone(card: VirtualCard) -> None:
    """A dropout is drawn once, not once for the forecast and once for the values."""
    x = torch.ones(100)
    torch.manual_seed(3)
    expected = functional.dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(functional.dropout(x.to(card.device), 0.5).cpu(), expected)


def test_autocast_multiplies_low_and_normalises_high(card: VirtualCard) -> None:
    """Matrix products, convolutions and attention in bfloat16; norms and softmax in float32."""
    d = card.device
    x = torch.ones(1, 4, 8, 8, device=d)
    linear, conv, norm = nn.Linear(8, 8).to(d), nn.Conv2d(4, 4, 1).to(d), nn.GroupNorm(2, 4).to(d)
    layer_norm = nn.LayerNorm(8).to(d)
    with torch.autocast("vcard", dtype=torch.bfloat16):
        low = (linear(x), conv(x), x @ x, functional.scaled_dot_product_attention(x, x, x))
        high = (norm(conv(x)), layer_norm(linear(x)), linear(x).softmax(-1), x + 1)
    assert [t.dtype for t in low] == [torch.bfloat16] * 4
    assert [t.dtype for t in high] == [torch.float32] * 4
    assert linear(x).dtype == torch.float32


def test_autocast_leaves_no_cast_weights_behind(card: VirtualCard) -> None:
    """Nothing is cached: the casts are gone with the call, and rebinding is seen inside."""
    layer = nn.Linear(64, 64, bias=False).requires_grad_(False).to(card.device)
    x = torch.ones(1, 64, device=card.device)
    before = card.read().allocated
    with torch.autocast("vcard", dtype=torch.float16):
        layer(x)
        assert card.read().allocated == before
        layer.weight.data = torch.zeros(64, 64, device=card.device)
        assert layer(x).abs().sum().item() == 0


# Halves


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_charged_as_halves(dtype: torch.dtype, card: VirtualCard) -> None:
    """Two bytes each, operands and results alike; the float32 of the arithmetic is not charged."""
    x = torch.ones(1024, 1024, dtype=dtype, device=card.device)
    assert card.read().allocated == 2 * MIB
    card.reset_peaks()
    y = x @ x
    assert (card.read().allocated, card.read().peak_allocated) == (4 * MIB, 4 * MIB)
    assert y.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32_and_rounded_once(
    dtype: torch.dtype, card: VirtualCard
) -> None:
    """The result is the rounded float32 result, bit for bit."""
    a, b = torch.randn(33, 65).to(dtype), torch.randn(65, 17).to(dtype)
    there = a.to(card.device) @ b.to(card.device)
    assert torch.equal(there.cpu(), (a.float() @ b.float()).to(dtype))
    soft = a.to(card.device).softmax(-1)
    assert torch.equal(soft.cpu(), a.float().softmax(-1).to(dtype))


def test_moves_of_halves_do_not_round(card: VirtualCard) -> None:
    """Views, copies and padding keep the bits, NaN payloads and infinities included."""
    bits = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32).to(torch.int16)
    there = bits.view(torch.bfloat16).to(card.device)
    back = torch.cat([there[:100].clone(), there[100:]]).cpu().view(torch.int16)
    assert torch.equal(back, bits)


def test_a_card_without_bfloat16_refuses_it() -> None:
    """Making, moving and computing are refused by name; float16 works."""
    card = open_card("virtual:gtx-1660-super")
    assert not card.supports(torch.bfloat16)
    assert card.supports(torch.float16)
    with pytest.raises(RuntimeError, match="does not compute in torch"):
        torch.zeros(2, dtype=torch.bfloat16, device=card.device)
    with pytest.raises(RuntimeError, match="bfloat16"):
        torch.zeros(2).bfloat16().to(card.device)
    with pytest.raises(RuntimeError, match="bfloat16"):
        torch.zeros(2, device=card.device).bfloat16()
    assert torch.zeros(2, device=card.device).half().dtype == torch.float16
    assert card.read().allocated == 0


# Devices


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: here @ there,
        lambda there, here: torch.cat([there, here]),
        lambda there, here: functional.linear(there, here),
        lambda there, here: there.add_(here),
        lambda there, here: here.mul_(there),
    ],
)
def test_host_and_card_tensors_do_not_mix(mix: object, card: VirtualCard) -> None:
    """The error names both devices, and nothing is charged."""
    there, here = torch.ones(3, 3, device=card.device), torch.ones(3, 3)
    before = card.read().allocated
    with pytest.raises(RuntimeError, match=r"same device.*cpu and vcard"):
        mix(there, here)
    assert card.read().allocated == before


def test_tensors_of_two_cards_do_not_mix() -> None:
    """Two virtual cards are two devices."""
    first, second = open_cards("virtual:2x64MiB")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=first.device) + torch.ones(3, device=second.device)


def test_a_tensor_moves_from_card_to_card() -> None:
    """The copy is charged to the second card alone, the original stays on the first."""
    first, second = open_cards("virtual:2x64MiB")
    there = torch.arange(1024.0, device=first.device)
    beyond = there.to(second.device)
    assert beyond.device == second.device
    assert (first.read().allocated, second.read().allocated) == (4096, 4096)
    beyond.zero_()
    assert there.sum().item() == 1023 * 512
    del there
    assert (first.read().allocated, second.read().allocated) == (0, 4096)


def test_a_host_number_mixes_with_anything(card: VirtualCard) -> None:
    """Tensors without dimensions are numbers."""
    assert (torch.ones(3, device=card.device) * torch.tensor(2.0)).sum().item() == 6


# The books


def test_the_list_of_charges_does_not_grow(card: VirtualCard) -> None:
    """Every storage leaves the list with its last tensor."""
    before = len(charges)
    for _ in range(20):
        x = torch.ones(16, device=card.device)
        x = x.view(4, 4) @ x.view(4, 4)
    del x
    assert len(charges) == before


def test_nothing_is_in_use_twice_after_a_wrong_call(card: VirtualCard) -> None:
    """A shape error is raised in PyTorch's words, and what was charged in advance is given back."""
    x = torch.ones(3, 4, device=card.device)
    before = card.read().allocated
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="must match the size"):
        x + x.T
    assert card.read().allocated == before
    card.check()


def test_fused_attention_allocates_no_score_matrix(card: VirtualCard) -> None:
    """1024 positions: 4 MiB of scores never appear, with or without gradients off."""
    q = torch.randn(1, 1, 1024, 16, device=card.device)
    card.reset_peaks()
    start = card.read().allocated
    with torch.no_grad():
        functional.scaled_dot_product_attention(q, q, q)
    with torch.inference_mode():
        functional.scaled_dot_product_attention(q, q, q)
    assert card.read().peak_allocated - start < MIB


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_attention_takes_masks_of_every_rank(card: VirtualCard, dims: int) -> None:
    """The fused kernel knows some of them alone; the others run as they do on the host."""
    q = torch.randn(2, 3, 4, 16)
    mask = torch.randn((3, 4, 4) if dims == 3 else (2, 3, 4, 4)[4 - dims :])
    with torch.no_grad():
        there = functional.scaled_dot_product_attention(
            *(q.to(card.device),) * 3, attn_mask=mask.to(card.device)
        )
    wanted = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert torch.allclose(there.cpu(), wanted, atol=1e-6)


def test_numbers_on_a_card_become_lists_and_parts_of_lists(card: VirtualCard) -> None:
    """As on any device: `tolist`, and a tensor made of a list that has one of them."""
    numbers = torch.arange(3.0, device=card.device)
    assert numbers.tolist() == [0.0, 1.0, 2.0]
    assert torch.tensor([numbers[2] / 4]).tolist() == [0.5]
