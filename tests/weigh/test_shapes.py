"""Results of operators on meta tensors, made by their shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.place import placed
from tightfit.testing import toy_vae
from tightfit.weigh import dry
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.shapes import Shapes

SHAPES = {
    "V2": ((2, 3, 64, 48), (2, 4, 8, 6)),
    "V3": ((1, 3, 9, 32, 24), (1, 16, 3, 8, 6)),
    "VA": ((1, 2, 1920 * 5), (1, 64, 5)),
}


class Counting:
    """An operator that writes down that it ran."""

    def __init__(self, func: Any, kernels: list[str]) -> None:
        self._func, self._kernels = func, kernels
        self._schema, self.overloadpacket = func._schema, func.overloadpacket

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._kernels.append(self.overloadpacket.__name__)
        return self._func(*args, **kwargs)


class Remembering(TorchDispatchMode):
    """Every operator goes through `Shapes`; kernels that really run are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()
        self.kernels: list[str] = []
        self._counting: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        counting = self._counting.setdefault(func, Counting(func, self.kernels))
        return self.shapes.call(counting, args, kwargs or {})[0]


def looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that a meta tensor is."""
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + 1,
        lambda x: torch.nn.functional.silu(x).transpose(1, 2).contiguous(),
        lambda x: x.expand(3, 8, 6) * 2.0,
        lambda x: torch.cat([x, x], 2),
        lambda x: torch.nn.functional.conv1d(x, torch.empty(4, 8, 3, device="meta")),
        lambda x: torch.sort(x)[1],
        lambda x: torch.empty_like(x, dtype=torch.int32) + 1.0,
        lambda x: x.mT @ x,
    ],
)
def test_a_remembered_result_looks_like_the_first(call: Callable[[Any], torch.Tensor]) -> None:
    """Shape, strides, type and storage; and it shares nothing with it."""
    x = torch.empty(1, 8, 6, device="meta")
    with Remembering() as mode:
        first = call(x)
        ran = len(mode.kernels)
        second = call(x)
    again = mode.kernels[ran:]
    assert looks(first) == looks(second) == looks(call(x))
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
    assert set(again) <= {"transpose", "permute", "expand", "_unsafe_view", "t", "view", "empty"}


def test_numbers_of_other_types_are_other_calls() -> None:
    """1, 1.0 and True are equal, and what they make of whole numbers is not."""
    x = torch.empty(4, dtype=torch.int32, device="meta")
    with Remembering():
        types = [(x * number).dtype for number in (1, 1.0, True, 1)]
    assert types == [torch.int32, torch.float32, torch.int32, torch.int32]


def test_what_shares_or_writes_runs_each_time() -> None:
    """Views by their schema, one that hides it, and writes in place."""
    x = torch.empty(4, 4, device="meta")
    with Remembering() as mode:
        for _ in range(2):
            views = [x.view(16), x.t(), torch.ops.aten._unsafe_view(x, [16]), x.add_(1)]
            assert {v.untyped_storage()._cdata for v in views} == {x.untyped_storage()._cdata}
    assert len(mode.kernels) == 8


def test_values_are_never_made_up() -> None:
    """A tensor that does not lie on the meta device has some."""
    with Remembering() as mode:
        sums = [(torch.ones(2) + at).sum().item() for at in range(3)]
    assert sums == [2, 4, 6]
    assert mode.kernels.count("add") == 3


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_dry_run_is_the_same_with_every_kernel_run(
    name: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step, every operator and the count of operations."""
    vae = toy_vae(name)

    def run() -> DryRun:
        call = vae.call(direction)
        with placed(vae.module, "meta"):
            source = torch.empty(SHAPES[name][direction == "decode"], device="meta")
            told = dry_run(lambda: call(source))
        vae.reset()
        return told

    remembered = run()
    monkeypatch.setattr(dry.Shapes, "_key", lambda *_: None)
    assert remembered == run()
