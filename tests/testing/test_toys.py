"""The toy VAEs: each has the traits that it claims."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.testing import toy_vae, wrap_toy

NAMES = ("V2", "V2N", "V2P", "V3", "VA")
SAMPLES = {
    "V2": (2, 3, 32, 48),
    "V2N": (2, 3, 32, 48),
    "V2P": (2, 3, 32, 48),
    "V3": (2, 3, 9, 16, 24),
    "VA": (2, 2, 5760),
}


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_that_the_traits_promise(name: str) -> None:
    """Encode and decode, batch of two."""
    vae = toy_vae(name)
    shape = SAMPLES[name]
    latent = vae.encode(torch.zeros(shape))
    assert latent.shape == (2, vae.traits.latent_channels, *vae.traits.latent_sizes(shape[2:]))
    assert vae.decode(latent).shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    """And another seed others; the caller's random state is left alone."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = toy_vae(name), toy_vae(name), toy_vae(name, seed=1)
    assert torch.equal(torch.rand(1), expected)
    pairs = list(zip(*(v.module.parameters() for v in (one, two, other)), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_every_pixel_of_v2n_depends_on_every_other() -> None:
    """Norm and attention: no overlap makes its tiles exact."""
    vae = toy_vae("V2N")
    x = torch.randn(1, 4, 4, 40)
    before = vae.decode(x)
    x[..., -1] += 10
    assert not torch.equal(vae.decode(x)[..., :8], before[..., :8])


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_v3_goes_on_where_it_ended(direction: Direction) -> None:
    """In pieces of any number of latent frames, bit for bit, until it is reset."""
    vae = toy_vae("V3", width=4)
    assert vae.onward is not None
    source = torch.randn((1, 3, 21, 16, 16) if direction == "encode" else (1, 16, 6, 2, 2))
    whole = vae.call(direction)(source)
    cuts = ([9, 4, 8] if direction == "encode" else [3, 1, 2]), 2
    pieces = [vae.onward(direction, piece, at == 0) for at, piece in enumerate(source.split(*cuts))]
    assert torch.equal(torch.cat(pieces, dim=2), whole)
    assert vae.module._feat[4] is not None
    vae.reset()
    assert all(kept is None for kept in vae.module._feat)


def test_v3_is_causal() -> None:
    """A change in the last frames leaves the earlier ones alone."""
    vae = toy_vae("V3")
    x = torch.randn(1, 16, 4, 2, 2)
    before = vae.decode(x)
    x[:, :, -1] += 1
    after = vae.decode(x)
    assert torch.equal(before[:, :, :9], after[:, :, :9])
    assert not torch.equal(before[:, :, 9:], after[:, :, 9:])


def test_v3_keeps_its_features_when_a_call_fails_and_drops_them_on_reset() -> None:
    """The trait that makes recovery hard."""
    vae = toy_vae("V3")

    def fail(*_: object) -> None:
        raise KeyError

    vae.module.to_latent.register_forward_pre_hook(fail)
    with pytest.raises(KeyError):
        vae.encode(torch.zeros(1, 3, 5, 16, 16))
    assert all(kept is not None for kept in vae.module._feat)
    vae.reset()
    assert all(kept is None for kept in vae.module._feat)


def test_nothing_needs_gradients() -> None:
    """Toys are for inference; a test may turn gradients on."""
    assert not any(p.requires_grad for name in NAMES for p in toy_vae(name).module.parameters())


def test_an_unknown_toy_is_refused_with_the_known_ones() -> None:
    """The sentence lists them."""
    with pytest.raises(UsageError, match="V2, V2N, V2P, V3, VA"):
        toy_vae("V9")


def test_a_module_without_a_reset_can_be_wrapped() -> None:
    """A third party's VAE may have none."""

    class Plain(nn.Module):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x

        decode = encode

    vae = wrap_toy(Plain(), Traits("Plain", 1, latent_channels=3))
    assert isinstance(vae, Vae)
    vae.reset()
    assert vae.encode(torch.ones(1)).item() == 1
