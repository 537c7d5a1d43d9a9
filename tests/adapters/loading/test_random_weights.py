"""Random weights: seeded by their paths, in their own dtype, of a scale that stays sane."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tightfit.adapters import find_parts, load_part
from tightfit.adapters.loading.random_weights import draw, unfilled


def layers() -> nn.Module:
    """A matrix, a norm, a kernel, an odd matrix; built without memory."""
    with unfilled():
        return nn.Sequential(
            nn.Linear(256, 512), nn.LayerNorm(512), nn.Conv2d(64, 32, 3), nn.Linear(7, 9)
        )


def test_matrices_and_kernels_keep_the_scale_of_what_goes_through_them() -> None:
    """Their deviation is 1/sqrt(fan in); gains are 1 and biases 0."""
    module: Any = layers()
    assert all(each.device.type == "meta" for each in module.state_dict().values())
    draw(module)
    assert module[0].weight.std() == pytest.approx(256**-0.5, rel=0.05)
    assert module[2].weight.std() == pytest.approx((64 * 9) ** -0.5, rel=0.05)
    assert bool((module[1].weight == 1).all())
    assert not any(bool(module[at].bias.any()) for at in range(4))


def test_a_draw_is_the_same_again_and_no_two_weights_are_alike() -> None:
    """The seed is the path, and nothing of the process."""
    one, two = layers(), layers()
    torch.manual_seed(1)
    draw(one)
    before = torch.get_rng_state()
    draw(two)
    assert torch.equal(before, torch.get_rng_state())
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )
    with unfilled():
        twins: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    draw(twins)
    assert not torch.equal(twins[0].weight, twins[1].weight)


def test_halves_are_the_rounded_numbers_of_the_wide_ones() -> None:
    """What is drawn does not depend on the dtype that it is kept in."""
    wide, half = layers(), layers().to(torch.bfloat16)
    draw(wide)
    draw(half)
    for a, b in zip(wide.state_dict().values(), half.state_dict().values(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


def test_ties_are_one_tensor_and_tables_have_their_values() -> None:
    """A text encoder's shared words are shared, and nothing of a part is left without memory."""
    for part in find_parts("random:flux.1-dev-mini"):
        module: Any = load_part(part, dtype=torch.bfloat16)
        tensors = [*module.parameters(), *module.buffers()]
        assert all(each.device.type == "cpu" for each in tensors)
        assert not any(each.requires_grad for each in tensors)
        if part.name == "text_encoder_2":
            assert module.shared.weight is module.encoder.embed_tokens.weight
