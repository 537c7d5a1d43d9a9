"""The one walk over a module's tensors, ties, and what it all weighs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from tests.weigh.shells import four_bit, four_bit_size, with_quant_state
from tightfit.card import open_card
from tightfit.place import placed
from tightfit.testing import toy_vae
from tightfit.weigh import Kind, identity, walk, weight_bytes, weights
from tightfit.weigh.tensors import recomputed


class Keeper(nn.Module):
    """Holds tensors in every place that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("table", torch.ones(5), persistent=False)
        self.register_buffer("absent", None)
        self.plain = torch.ones(6)
        self.feat = [None, torch.ones(7), (torch.ones(8), {"deep": torch.ones(9)})]
        self.words = {"a": "b"}


def test_every_place_a_tensor_is_held_in_is_found_with_its_path() -> None:
    """Parameters, buffers (persistent or not), attributes, lists, tuples and dicts."""
    found = {held.path: (held.kind, held.tensor.numel()) for held in walk(Keeper())}
    assert found == {
        "inner.weight": (Kind.PARAMETER, 6),
        "inner.bias": (Kind.PARAMETER, 3),
        "scale": (Kind.BUFFER, 4),
        "table": (Kind.BUFFER, 5),
        "plain": (Kind.ATTRIBUTE, 6),
        "feat[1]": (Kind.ATTRIBUTE, 7),
        "feat[2][0]": (Kind.ATTRIBUTE, 8),
        "feat[2][1]['deep']": (Kind.ATTRIBUTE, 9),
    }


def test_weights_are_parameters_and_buffers_alone() -> None:
    """What a module keeps in plain attributes is not part of it."""
    assert {held.path for held in weights(Keeper())} == {
        "inner.weight",
        "inner.bias",
        "scale",
        "table",
    }
    assert weight_bytes(Keeper()) == 4 * (6 + 3 + 4 + 5)


def test_a_list_that_holds_itself_ends() -> None:
    """The walk has a depth."""
    module = nn.Identity()
    module.loop = [torch.ones(1)]
    module.loop.append(module.loop)
    assert len(list(walk(module))) < 10


def tied() -> nn.Sequential:
    module = nn.Sequential(nn.Embedding(10, 64), nn.Linear(64, 10, bias=False))
    module[1].weight = module[0].weight
    return module


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_tie_is_listed_in_each_place_and_weighed_once(where: str) -> None:
    """Summing per module would count an Embedding tied to a Linear twice."""
    with torch.device(where):
        module = tied()
    assert [held.path for held in weights(module)] == ["0.weight", "1.weight"]
    assert weight_bytes(module) == 10 * 64 * 4


def test_meta_tensors_of_one_shape_are_not_tied() -> None:
    """All their pointers are 0; identity does not go by pointers."""
    one, two = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    assert one.data_ptr() == two.data_ptr() == 0
    assert identity(one) != identity(two)
    assert identity(one) == identity(one)


@pytest.mark.parametrize("where", ["cpu", "virtual:64MiB"])
def test_identity_is_bytes_and_layout(where: str) -> None:
    """The same storage seen alike is one; another window, shape or dtype of it is not."""
    card = open_card(where)
    base = torch.zeros(4, 4, device=card.device)
    assert identity(base) == identity(base.detach())
    for other in (base[1:], base.T, base.view(16), base.view(torch.int32), base.clone()):
        assert identity(base) != identity(other)


def test_a_weight_normed_convolution_weighs_its_two_originals() -> None:
    """The weight itself is made at each access and is held nowhere."""
    conv = weight_norm(nn.Conv1d(2, 3, 5))
    assert [name for name, _ in conv.named_parameters(recurse=False)] == ["bias"]
    assert conv.weight is not conv.weight
    assert weight_bytes(conv) == 4 * (3 + 3 * 2 * 5 + 3)


def test_halves_weigh_half() -> None:
    """Bytes, not elements."""
    assert weight_bytes(nn.Linear(8, 8, bias=False).half()) == 128


def test_a_toy_with_a_feature_cache_holds_attributes_only_while_it_is_filled() -> None:
    """The cache of V3 is found by its path."""
    vae = toy_vae("V3")
    assert not [held for held in walk(vae.module) if held.kind is Kind.ATTRIBUTE]
    vae.module._feat[3] = torch.ones(2)
    assert [h.path for h in walk(vae.module) if h.kind is Kind.ATTRIBUTE] == ["_feat[3]"]


def test_the_originals_of_a_parametrization_belong_to_the_module_it_is_put_on() -> None:
    """They lie in children of children, and are used when that module runs."""
    module = nn.Sequential(weight_norm(nn.Conv1d(2, 3, 5)))
    places = {held.path: (held.place, held.leaf) for held in weights(module)}
    deep = "0.parametrizations.weight"
    assert places == {
        "0.bias": ("0", "0"),
        f"{deep}.original0": (deep, "0"),
        f"{deep}.original1": (deep, "0"),
    }
    ((name, original),) = recomputed(module[0])
    assert (name, original.shape) == ("weight", module[0].weight.shape)


def test_old_style_weight_norm_is_seen_to_make_its_weight_anew() -> None:
    """The weight is a plain attribute that a hook replaces before each call."""
    with pytest.warns(FutureWarning):
        conv = nn.utils.weight_norm(nn.Conv1d(2, 3, 5))
    again = {held.path: held.recomputed for held in walk(conv)}
    assert again == {"bias": False, "weight_g": False, "weight_v": False, "weight": True}
    ((name, original),) = recomputed(conv)
    assert (name, original.numel()) == ("weight", 30)
    assert weight_bytes(conv) == 4 * (3 + 3 + 30)


def test_spectral_norm_and_pruning_make_theirs_anew_too() -> None:
    """Both ways of spectral norm, and the mask of a pruned weight."""
    pruned = prune.l1_unstructured(nn.Linear(4, 4), "weight", 3)
    for module in (
        pruned,
        nn.utils.spectral_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    ):
        ((name, original),) = recomputed(module)
        assert (name, original.numel()) == ("weight", 16)
    assert not list(recomputed(nn.Linear(4, 4)))


def test_packed_weights_weigh_what_they_wrap_and_carry() -> None:
    """Shells and quantisation states, in a module; a tie of one is still a tie."""
    module = nn.Sequential(nn.Linear(128, 8, bias=False), nn.Linear(128, 8, bias=False))
    module[0].weight = nn.Parameter(four_bit(8, 128), requires_grad=False)
    module[1].weight = module[0].weight
    assert weight_bytes(module) == four_bit_size(8, 128)
    state = nn.Linear(1024, 64, bias=False)
    state.weight = with_quant_state(64, 1024)
    assert weight_bytes(state) > state.weight.nbytes


def test_shells_are_the_same_when_they_wrap_the_same() -> None:
    """Detached ones are; copies are not."""
    shell = four_bit(8, 128)
    assert identity(shell) == identity(shell.detach())
    assert identity(shell) != identity(shell.clone())


def test_a_lazy_weight_is_only_itself() -> None:
    """Two of them have no bytes that could be the same."""
    one, two = nn.LazyLinear(3), nn.LazyLinear(3)
    assert identity(one.weight) == identity(one.weight) != identity(two.weight)


def test_a_shell_is_placed_on_a_card_at_its_weight() -> None:
    """What the walk says is what the card charges, and nothing stays."""
    module = nn.Linear(1024, 64, bias=False)
    module.weight = nn.Parameter(four_bit(64, 1024), requires_grad=False)
    card = open_card("virtual:1MiB")
    with placed(module, card.device):
        assert card.read().allocated == weight_bytes(module) == four_bit_size(64, 1024)
        assert module.weight.device == card.device
    assert card.read().allocated == 0
    card.check()
