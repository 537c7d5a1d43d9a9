"""Whether a LoRA is a module's, told by names and shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.run.fitting.lora import check_loading, check_lora


class Wrapped(nn.Module):
    """As PEFT wraps a layer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base


class Net(nn.Module):
    """Layers of each kind that can have a LoRA, and one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)
        self.wrapped = Wrapped(nn.Linear(8, 6))
        self.conv = nn.Conv2d(4, 10, 3)
        self.table = nn.Embedding(20, 5)
        self.norm = nn.LayerNorm(8)


def state(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Tensors of those shapes; two underscores are a dot."""
    return {key.replace("__", "."): torch.zeros(shape) for key, shape in shapes.items()}


FITS = {
    "a linear layer": state(linear__lora_A__weight=(2, 8), linear__lora_B__weight=(6, 2)),
    "a wrapped one": state(wrapped__lora_A__weight=(2, 8), wrapped__lora_B__weight=(6, 2)),
    "with the adapter's name": state(
        linear__lora_A__mine__weight=(2, 8), linear__lora_B__mine__weight=(6, 2)
    ),
    "with a bias": state(
        linear__lora_A__weight=(2, 8), linear__lora_B__weight=(6, 2), linear__lora_B__bias=(6,)
    ),
    "a convolution": state(conv__lora_A__weight=(2, 4, 3, 3), conv__lora_B__weight=(10, 2, 1, 1)),
    "a table": state(table__lora_embedding_A=(2, 20), table__lora_embedding_B=(5, 2)),
    "a magnitude": state(
        linear__lora_A__weight=(2, 8),
        linear__lora_B__weight=(6, 2),
        linear__lora_magnitude_vector=(6,),
    ),
    "an old spelling": state(linear__lora__down__weight=(8, 2), linear__lora__up__weight=(2, 6)),
    "of Kronecker factors": state(linear__lokr_w1=(2, 2)),
    "nothing": {},
}


@pytest.mark.parametrize("name", FITS)
def test_what_fits_or_cannot_be_told_passes(name: str) -> None:
    """By the shapes of PEFT; other spellings are for those who convert them."""
    check_lora(Net(), FITS[name])


@pytest.mark.parametrize(
    ("lora", "match"),
    [
        (
            state(linear__lora_A__weight=(8, 2), linear__lora_B__weight=(6, 2)),
            r"`linear.lora_A.weight` is \[8, 2\], and `linear` takes \[2, 8\]",
        ),
        (
            state(linear__lora_A__weight=(2, 8), linear__lora_B__weight=(2, 6)),
            r"`linear.lora_B.weight` is \[2, 6\], and the rank is 2.*and `linear` gives 6",
        ),
        (
            state(linear__lora_A__weight=(2, 8), linear__lora_B__weight=(6, 3)),
            r"`linear.lora_B.weight` is \[6, 3\], and the rank is 2 by `linear.lora_A.weight`",
        ),
        (state(linear__lora_A__weight=(2, 8)), "has no `lora_B` beside it"),
        (state(linear__lora_B__weight=(6, 2)), "has no `lora_A` beside it"),
        (
            state(conv__lora_A__weight=(2, 4, 1, 1), conv__lora_B__weight=(10, 2, 1, 1)),
            r"`conv` takes \[2, 4, 3, 3\]",
        ),
        (state(other__lora_A__weight=(2, 8)), "for a layer `other` that the module has not"),
        (state(norm__lora_A__weight=(2, 8)), "for a layer `norm` that"),
        (
            state(
                linear__lora_A__weight=(2, 8), linear__lora_B__weight=(6, 2), linear__weight=(6, 8)
            ),
            r"`linear.weight` \[6, 8\] is no part of a LoRA",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_shape(lora: dict[str, Any], match: str) -> None:
    """Key, shape, and what would fit."""
    with pytest.raises(InputError, match=match):
        check_lora(Net(), lora)


def test_many_faults_are_counted() -> None:
    """Three are named."""
    lora = {f"no.{at}.lora_A.weight": torch.zeros(2, 8) for at in range(9)}
    with pytest.raises(InputError, match=r"`no.2.lora_A.weight`.* \(and 6 more\)"):
        check_lora(Net(), lora)


def test_keys_of_other_parts_of_a_pipeline_are_not_looked_at() -> None:
    """Only those with the prefix that is asked for, by default that of a transformer."""
    good = state(
        transformer__linear__lora_A__weight=(2, 8), transformer__linear__lora_B__weight=(6, 2)
    )
    other = state(text_encoder__x__lora_A__weight=(1, 1))
    check_loading(Net(), (good | other,), {})
    check_loading(Net(), (), {"pretrained_model_name_or_path_or_dict": good | other})
    with pytest.raises(InputError, match=r"`x.lora_A.weight`"):
        check_loading(Net(), (good | other, "text_encoder"), {})
    with pytest.raises(InputError, match=r"`transformer.linear.lora_A.weight`"):
        check_loading(Net(), (good,), {"prefix": None})


def test_what_would_have_to_be_downloaded_is_left_to_the_library() -> None:
    """A name that is no file here."""
    check_lora(Net(), "somebody/some-lora")
    check_lora(Net(), None)
