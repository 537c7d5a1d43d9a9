"""Weights that are stored in one dtype and used in another: which they are, and their scales."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.weigh.shells import is_shell
from tightfit.weigh.tensors import Held, Kind, weights

FLOATS = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
"""Stored only: nothing is computed in them, and bfloat16 and float16 have every value of theirs."""
COMPUTES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What layers compute in."""
BLOCK = 128
"""Rows and columns for which a scale of two axes stands, where it is neither of the tensor nor of
its rows; in the wild ``weight_scale_inv``, which is multiplied by like the others."""
Grid = Literal["tensor", "rows", "blocks"]
_asked: WeakKeyDictionary[nn.Module, torch.dtype] = WeakKeyDictionary()
"""What modules were asked to compute in, like their scales a thing of theirs."""


def compute_in(module: nn.Module, dtype: torch.dtype | None) -> None:
    """From here on, calls of `module` are to compute in `dtype`, whatever they are given.

    None is that nobody asks: what a call is given decides.
    """
    if dtype is None:
        _asked.pop(module, None)
    else:
        _asked[module] = dtype


def computes_in(module: nn.Module) -> torch.dtype | None:
    """What was asked for; None is that its calls tell."""
    return _asked.get(module)


@dataclass(frozen=True, eq=False)
class Converted:
    """A weight that is converted just before its layer runs.

    Attributes:
        held: what is stored.
        scale: what it is multiplied by; None is nothing.
        grid: what each value of the scale stands for.
        follows: it is used in the dtype of the call whatever that is; else only where that is
            wider than what it is stored in, since what is kept wide is kept so on purpose.
    """

    held: Held
    scale: Held | None = None
    grid: Grid = "tensor"
    follows: bool = True

    @property
    def tensor(self) -> torch.Tensor:
        """What is stored."""
        return self.held.tensor

    def used_in(self, dtype: torch.dtype, stored: torch.dtype) -> torch.dtype:
        """The dtype that it is used in where the call computes in `dtype`, as it is `stored`."""
        return dtype if self.follows or stored.itemsize < dtype.itemsize else stored


@dataclass(frozen=True, eq=False)
class Layer:
    """A module that owns weights which are converted, all at once, when it is called.

    Attributes:
        name: its path.
        weights: those of a dtype that nothing is computed in, and the parameters beside them; of
            other modules the halves.
    """

    name: str
    weights: tuple[Converted, ...]


def scale_names(weight: str) -> tuple[str, ...]:
    """What the scale of a tensor of that name is called beside it, wherever it comes from."""
    return f"{weight}_scale", f"scale_{weight}", f"{weight}_scale_inv"


def is_stored_only(tensor: torch.Tensor) -> bool:
    """Whether nothing is computed in what `tensor` is stored in, scale or not."""
    return tensor.dtype in FLOATS


def has_own_way(module: nn.Module) -> bool:
    """Whether `module` runs in a way that is not PyTorch's, and may compute as it likes."""
    forward: Any = type(module).forward
    return forward is nn.Module.forward or not forward.__module__.startswith("torch.nn.")


def grid_of(scale: torch.Size, weight: torch.Size) -> Grid | None:
    """What each value of a scale of that shape stands for; None where that cannot be told."""
    if scale.numel() == 1:
        return "tensor"
    if not weight or scale[0] == weight[0] == scale.numel():
        return "rows" if weight else None
    blocks = tuple(-(-size // BLOCK) for size in weight)
    return "blocks" if len(weight) == 2 and tuple(scale) == blocks else None


@dataclass(frozen=True, eq=False)
class Conversions:
    """What of a module is converted before it is used.

    Attributes:
        layers: whose weights are, in the order of registration.
        usual: what a call computes in that is given no floats: what most of the other weights are
            stored in, or bfloat16 where there are none.
        asked: what all calls compute in; None is that `usual` and what they are given decide.
    """

    layers: tuple[Layer, ...] = ()
    usual: torch.dtype = torch.bfloat16
    asked: torch.dtype | None = None

    @classmethod
    def of(cls, module: nn.Module) -> Conversions:
        """Plain tensors of eight-bit floats, with or without a scale, and of ``int8`` with one.

        A layer that has a scale and a way of its own to run is left alone: it computes with what
        is stored. Where there are such weights, or the module was asked to `compute_in` something,
        the halves of other layers are there too; else a module without any is its own business.
        Raises `UsageError`, by its path, for a scale of another shape.
        """
        asked = computes_in(module)
        helds = [held for held in weights(module) if not is_shell(held.tensor)]
        scales = _scales(helds)
        owned: dict[str, list[Held]] = {}
        for held in helds:
            owned.setdefault(held.leaf, []).append(held)
        layers = [_layer(name, inside, scales) for name, inside in owned.items()]
        aside = {id(scale.tensor) for scale in scales.values()}
        if asked is not None or any(layers):
            layers += [_halves(name, inside, aside, asked) for name, inside in owned.items()]
        others = (held.tensor for held in helds if id(held.tensor) not in aside)
        usual = asked or _most(others) or torch.bfloat16
        return cls(tuple(filter(None, layers)), usual, asked)

    def dtype(self, given: Iterable[object]) -> torch.dtype:
        """What a call that is `given` these computes in: the floats that most values come in.

        Unless something else was asked for. It depends on nothing else, room least of all.
        """
        if self.asked is not None:
            return self.asked
        return _most(each for each in given if isinstance(each, torch.Tensor)) or self.usual


def _most(tensors: Iterable[torch.Tensor]) -> torch.dtype | None:
    counts: dict[torch.dtype, int] = {}
    for tensor in tensors:
        if tensor.dtype in COMPUTES:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    return max(counts, key=counts.__getitem__) if counts else None


def _scales(helds: Sequence[Held]) -> dict[int, Held]:
    """By the id of a weight its scale, which may be beside another place of a tie."""
    owned = {(id(held.owner), held.name): held for held in helds}
    found: dict[int, Held] = {}
    for held in helds:
        for name in scale_names(held.name) if _is_stored(held) else ():
            if (id(held.owner), name) in owned:
                found.setdefault(id(held.tensor), owned[id(held.owner), name])
    return found


def _layer(name: str, helds: Sequence[Held], scales: dict[int, Held]) -> Layer | None:
    """None where nothing of it is converted."""
    found = [(held, scales.get(id(held.tensor))) for held in helds if _is_stored(held)]
    if not found or not all(_converts(held, scale) for held, scale in found):
        return None
    aside = {id(scale.tensor) for _, scale in found if scale is not None}
    beside = [
        Converted(held)
        for held in helds
        if held.kind is Kind.PARAMETER
        and held.tensor.dtype in COMPUTES
        and id(held.tensor) not in aside
    ]
    return Layer(name, (*(_converted(held, scale) for held, scale in found), *beside))


def _halves(
    name: str, helds: Sequence[Held], scales: set[int], asked: torch.dtype | None
) -> Layer | None:
    """Of a module without eight-bit weights; as `asked`, with its buffers, or as calls need them.

    `scales` are ids of tensors that are not meant.
    """
    if any(map(_is_stored, helds)):
        return None
    kinds = (Kind.PARAMETER,) if asked is None else (Kind.PARAMETER, Kind.BUFFER)
    found = [
        Converted(held, follows=asked is not None)
        for held in helds
        if held.kind in kinds
        and held.tensor.dtype in (torch.float16, torch.bfloat16)
        and id(held.tensor) not in scales
    ]
    return Layer(name, tuple(found)) if found else None


def _is_stored(held: Held) -> bool:
    """Whether it may be one: a plain tensor of such a dtype, or one as integers."""
    tensor = held.tensor
    plain = isinstance(tensor, nn.Parameter) or held.kind is Kind.BUFFER
    return plain and (is_stored_only(tensor) or (tensor.dtype is torch.int8 and tensor.dim() > 1))


def _converts(weight: Held, scale: Held | None) -> bool:
    if scale is None:
        return is_stored_only(weight.tensor)
    return not has_own_way(weight.owner)


def _converted(weight: Held, scale: Held | None) -> Converted:
    if scale is None:
        return Converted(weight)
    grid = grid_of(scale.tensor.shape, weight.tensor.shape)
    if grid is None or scale.tensor.dtype not in COMPUTES:
        raise UsageError(
            f"`{scale.path}`, {_said(scale.tensor)}, cannot be the scale of `{weight.path}`, "
            f"{_said(weight.tensor)}: that has one value, one for each row, or one for each "
            f"{BLOCK} x {BLOCK} of them."
        )
    return Converted(weight, scale, grid)


def _said(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
