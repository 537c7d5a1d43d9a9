"""D08: models in a dtype that the card does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tightfit.adapters import find_vae, load_vae
from tightfit.errors import UsageError

BF16 = torch.bfloat16


@pytest.fixture(name="folder")
def bf16_folder(tmp_path: Path) -> Path:
    """A VAE whose file is in bf16."""
    module: Any = load_vae(find_vae("random:flux-vae-mini"), dtype=BF16).module
    module.save_pretrained(tmp_path / "vae")
    return tmp_path / "vae"


def test_d08_a_vae_whose_file_is_in_bf16_runs_in_what_an_old_card_has(folder: Path) -> None:
    """The card raises on bf16: weights, biases and input are all float32, and the report says so.

    The numbers are those of a new card that was asked for float32.
    """
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    old, new = virtual("64MiB,bf16=no"), virtual("64MiB")
    encoded = tightfit.encode(picture, vae=str(folder), card=old)
    decoded = tightfit.decode(encoded.value, vae=str(folder), card=old)
    for done in (encoded, decoded):
        assert any("bfloat16 weights run in float32" in line for line in done.report.adjusted)
    assert encoded.value.latent.isfinite().all()
    assert decoded.value.pixels.isfinite().all()
    assert encoded.value.latent.std() > 0
    wanted = tightfit.encode(picture, vae=str(folder), card=new, dtype="float32")
    assert torch.equal(encoded.value.latent, wanted.value.latent)
    assert_back(old)


def test_d08_a_dtype_that_is_asked_for_is_not_replaced(folder: Path) -> None:
    """Nor is that of a VAE which somebody has loaded: both are refused, before anything runs."""
    picture, card = torch.rand(1, 3, 64, 64), virtual("64MiB,bf16=no")
    with pytest.raises(UsageError, match="does not compute in it"):
        tightfit.encode(picture, vae=str(folder), card=card, dtype="bfloat16")
    vae = load_vae(find_vae(str(folder)), dtype=BF16)
    with pytest.raises(UsageError, match="the VAE that was given is bfloat16"):
        tightfit.encode(picture, vae=vae, card=card)
    assert card.allocations == 0


@pytest.mark.parametrize("part", ["all", "a bias"])
def test_d08_a_module_in_a_dtype_that_the_card_lacks_is_refused_by_path(part: str) -> None:
    """Before anything is moved; in another dtype it runs, weights and biases alike."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).requires_grad_(False)
    name = "0.weight"
    if part == "all":
        module.to(BF16)
    else:
        bias = nn.Parameter(torch.ones(8, dtype=BF16), requires_grad=False)
        module.get_submodule("2").bias = bias
        name = "2.bias"
    card, x = virtual("64MiB,bf16=no"), torch.randn(2, 8)
    with pytest.raises(UsageError, match=rf"`Sequential\.{name}` is in bfloat16, in which"):
        tightfit.fit(module, card=card)
    assert card.allocations == 0
    module.to(torch.float32)
    expected = module(x)
    tightfit.fit(module, card=card)
    torch.testing.assert_close(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert_back(card)


@pytest.mark.filterwarnings("ignore:There are modules in")
def test_d08_so_is_a_pipeline_which_is_left_as_it_was() -> None:
    """The network is named; those that were taken before it are given back."""
    pipe, card = tiny.flux(), virtual("64MiB,bf16=no")
    pipe.transformer.to(dtype=BF16)
    before = {name: set(vars(part)) for name, part in pipe.components.items() if part is not None}
    with pytest.raises(UsageError, match=r"`FluxTransformer2DModel\..* is in bfloat16"):
        tightfit.fit(pipe, card=card)
    assert {n: set(vars(p)) for n, p in pipe.components.items() if p is not None} == before
    assert card.allocations == 0
    pipe.transformer.to(dtype=torch.float32)
    tightfit.unfit(tightfit.fit(pipe, card=card))
