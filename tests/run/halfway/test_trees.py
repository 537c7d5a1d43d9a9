"""Values taken apart and put together again."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from tightfit.run.halfway.trees import Packed, blank, pack, unpack

HOST = torch.device("cpu")


class Output(OrderedDict[str, Any]):
    """As diffusers' outputs are."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)


RECORDS = {"Output": Output}


def through_text(packed: Packed) -> Packed:
    return Packed(json.loads(json.dumps(packed.form)), packed.tensors)


def again(value: object) -> Any:
    return unpack(through_text(pack(value, "value", RECORDS)), RECORDS, HOST)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0.1 + 0.2,
        float("inf"),
        10**30,
        "text",
        [1, (2, [None])],
        {"a": {1: 2.0}, (3, 4): "key"},
        torch.bfloat16,
    ],
)
def test_plain_values_come_back_with_their_types(value: object) -> None:
    """Also where JSON has no such type."""
    back = again(value)
    assert back == value
    assert type(back) is type(value)


def test_not_a_number_comes_back() -> None:
    """It is equal to nothing, itself included."""
    assert again(float("nan")) != again(float("nan"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).bfloat16(),
        torch.randn(3, 1).expand(3, 4),
        torch.tensor(1.5),
        torch.zeros(0, 3),
        torch.randn(3, dtype=torch.complex64),
    ],
)
def test_tensors_come_back_as_they_lie(tensor: torch.Tensor) -> None:
    """With their strides, where each element has a place of its own."""
    back = again(tensor)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
    if 0 not in tensor.stride():
        assert back.stride() == tensor.stride()


def test_one_tensor_in_two_places_stays_one() -> None:
    """As what schedulers remember of the last step."""
    tensor = torch.randn(3)
    first, (second, other) = again([tensor, (tensor, tensor.clone())])
    assert first is second
    assert other is not first


def test_numbers_of_numpy_keep_their_types() -> None:
    """Arithmetic with them rounds otherwise than with Python's."""
    back = again({"scalar": np.float32(0.1), "array": np.arange(3, dtype=np.float64)})
    assert isinstance(back["scalar"], np.float32)
    assert back["scalar"] == np.float32(0.1)
    assert back["array"].dtype == np.float64
    assert (back["array"] == np.arange(3)).all()


def test_outputs_with_names_stay_what_they_are() -> None:
    """By a list of classes: no file can name another."""
    back = again(Output(sample=torch.ones(2)))
    assert isinstance(back, Output)
    assert torch.equal(back["sample"], torch.ones(2))
    packed = pack(Output(sample=1), "value", RECORDS)
    with pytest.raises(LookupError):
        unpack(packed, {}, HOST)


def test_a_form_alone_is_enough_for_zeros() -> None:
    """Of the same shapes and types."""
    value = (torch.ones(2, 3).t().half(), [1, torch.ones(1)])
    zeros, (one, single) = blank(pack(value, "value", RECORDS).form, RECORDS, HOST)
    assert (zeros.shape, zeros.dtype, zeros.stride()) == ((3, 2), torch.float16, (1, 3))
    assert not zeros.any()
    assert (one, single.tolist()) == (1, [0.0])


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["text"]), [lambda: None]])
def test_what_cannot_be_taken_apart_is_named(value: object) -> None:
    """By the way to it."""
    with pytest.raises(TypeError, match=r"`state\.deep"):
        pack({"deep": value}, "state", RECORDS)


@pytest.mark.parametrize("form", [{"module": "os"}, [1], {"tensor": [0, [1], "getenv", [1], True]}])
def test_forms_that_nobody_packed_are_refused(form: object) -> None:
    """They come from files."""
    with pytest.raises(ValueError, match="is no"):
        unpack(Packed(form, (torch.zeros(1),)), RECORDS, HOST)
