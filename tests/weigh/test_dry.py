"""What a call will need, found without values."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch.nn import functional

from tightfit.card import open_card
from tightfit.place import placed
from tightfit.testing import toy_vae
from tightfit.units import KIB
from tightfit.weigh import dry_peak
from tightfit.weigh.dry import _LiveBytes, dry_run

SHAPES = {
    "V2": ((2, 3, 128, 96), (2, 4, 16, 12)),
    "V2N": ((1, 3, 128, 96), (1, 4, 16, 12)),
    "V2P": ((1, 3, 128, 96), (1, 4, 8, 6)),
    "V3": ((1, 3, 9, 64, 48), (1, 16, 3, 8, 6)),
    "VA": ((1, 2, 1920 * 20), (1, 64, 20)),
}


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_what_lives_at_once_counts() -> None:
    """Two results live beside each other at the peak; the input never counts."""
    x = meta(1024)

    def call() -> torch.Tensor:
        y = x + 1
        return y * 2

    assert dry_peak(call) == 2 * 4096


def test_what_was_freed_does_not_count() -> None:
    """A chain of results that are dropped needs two at a time, however long it is."""
    x = meta(1024)

    def call() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y + 1
        return y

    assert dry_peak(call) == 2 * 4096


def test_views_and_writes_in_place_are_free() -> None:
    """Only new storage counts."""
    x = meta(32, 32)
    assert dry_peak(lambda: x.T.reshape(1024).view(32, 32).T[1:].add_(1)) == 4096
    assert dry_peak(lambda: x.view(1024).mul_(2)) == 0


def test_numbers_made_on_the_way_hide_nothing() -> None:
    """A host scalar that dies may leave its address to a large result, which still counts."""
    x = meta(1024)

    def call() -> list[torch.Tensor]:
        return [x * torch.tensor(2.0) for _ in range(10)]

    assert dry_peak(call) == 10 * 4096


def test_attention_is_the_fused_kernel() -> None:
    """No score matrix: 1024 positions would need 4 MiB for it."""
    q = meta(1, 1, 1024, 16)
    assert dry_peak(lambda: functional.scaled_dot_product_attention(q, q, q)) == q.nbytes


def test_what_attention_gives_lies_as_its_query_does() -> None:
    """Heads that were split off the last axis go back as a view, as a card was watched to do."""
    x = meta(1, 64, 4 * 16)

    def call() -> torch.Tensor:
        q = x.unflatten(2, (4, 16)).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)

    assert dry_peak(call) == x.nbytes


def test_the_figure_can_be_asked_for_again() -> None:
    """Nothing is left of a run: the second says the same."""
    x = meta(100, 100)
    assert len({dry_peak(lambda: (x @ x).relu()) for _ in range(3)}) == 1


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_dry_run_predicts_the_measured_peak(name: str, direction: str) -> None:
    """On a card without slack: within a KiB of what a real run allocates beyond its input."""
    vae = toy_vae(name)
    shape = SHAPES[name][direction == "decode"]
    call = vae.call(direction)
    with placed(vae.module, "meta"):
        source = meta(*shape)
        predicted = dry_peak(lambda: call(source))
    card = open_card("virtual:1GiB")
    with placed(vae.module, card.device), torch.no_grad():
        source = torch.zeros(shape, device=card.device)
        before = card.read().allocated
        card.reset_peaks()
        call(source)
        measured = card.read().peak_allocated - before
    assert abs(predicted - measured) <= KIB


def test_the_books_of_a_run_go_with_it() -> None:
    """Weights that live on hold nothing of the runs that used them."""
    weight = meta(64, 64)
    x = meta(4, 64)

    def books() -> int:
        gc.collect()
        return sum(isinstance(one, _LiveBytes) for one in gc.get_objects())

    before = books()
    for _ in range(3):
        dry_peak(lambda: (x @ weight).relu())
    assert books() == before


@pytest.mark.parametrize(("dtype", "made"), [(torch.bfloat16, 1), (torch.float32, 3)])
def test_an_rms_norm_is_the_fused_kernel_where_its_weight_has_the_same_dtype(
    dtype: torch.dtype, made: int
) -> None:
    """CUDA falls back to pieces in float32 where the two differ."""
    norm = torch.nn.RMSNorm(64, eps=1e-6, device="meta", dtype=dtype)
    source = torch.empty(4, 256, 64, device="meta", dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the mismatch
        run = dry_run(lambda: norm(source))
    assert run.peak >= made * source.nbytes
    assert (run.peak == source.nbytes) == (made == 1)
