"""While a module is fitted, what would write to its weights, or move them, is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tightfit.errors import UsageError

_INSTEAD = "unfit it, do that, and fit it again"
_STAYS = (
    "it was moved by `.to()`, which does nothing while it is fitted: its weights come to the card "
    "for its calls"
)


class Guard:
    """Stands in all parts of a module for conversions and for loading of state dicts.

    Weights that are away show NaN, and what is written to others would be lost: `module.cpu()` or
    `load_state_dict` would spoil the module without a word. A conversion that changes nothing
    passes, such as `pipe.to("cuda")` for the sake of other parts of a pipeline. So does loading
    what the module has got since, such as an adapter.

    A move alone, to the card, to the one that callers believe in, or to the host, passes as well,
    and nothing is done: pipelines bring what they are about to call, and take it away afterwards.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: tuple[torch.device | None, ...],
        note: Callable[[str], None],
    ) -> None:
        """`devices` are those of the cards; `note` is told of moves that were passed over."""
        self._puts: list[tuple[nn.Module, str, Any]] = []
        self._devices = devices
        self._note = note
        self._name = type(module).__name__
        for part in list(module.modules()):
            self._put(part, "_apply", self._convert(part))
            self._put(part, "_load_from_state_dict", self._load(part))

    def remove(self) -> None:
        """Everything is as it was; harmless when repeated."""
        while self._puts:
            part, name, before = self._puts.pop()
            vars(part).pop(name, None)
            if before is not None:
                vars(part)[name] = before

    def _put(self, part: nn.Module, name: str, instead: Callable[..., Any]) -> None:
        self._puts.append((part, name, vars(part).get(name)))
        vars(part)[name] = instead

    def _convert(self, part: nn.Module) -> Callable[..., nn.Module]:
        def convert(change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
            for tensor in _own(part).values():
                like = torch.empty((2,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
                after = change(like)
                if _kind(after) == _kind(like):
                    continue
                if self._is_moved(like, after):
                    self._note(_STAYS)
                else:
                    raise UsageError(
                        f"`{self._name}` is fitted, so its weights cannot be moved or converted "
                        f"(from {_named(like)} to {_named(after)}): {_INSTEAD}."
                    )
            if recurse:
                for child in part.children():
                    each: Any = child
                    each._apply(change)
            return part

        return convert

    def _is_moved(self, like: torch.Tensor, after: torch.Tensor) -> bool:
        """To a card of its own or to the host, and else as it was."""
        there = after.device in self._devices or after.device.type == "cpu"
        return there and (after.dtype, after.stride()) == (like.dtype, like.stride())

    def _load(self, part: nn.Module) -> Callable[..., None]:
        plain: Callable[..., None] = part._load_from_state_dict

        def load(state: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
            written = [prefix + name for name in _own(part) if prefix + name in state]
            if written:
                raise UsageError(
                    f"`{self._name}` is fitted, so `{written[0]}` cannot be loaded into it: "
                    f"{_INSTEAD}."
                )
            plain(state, prefix, *args, **kwargs)

        return load


def _own(part: nn.Module) -> dict[str, torch.Tensor]:
    tables = {**part._parameters, **part._buffers}
    return {name: tensor for name, tensor in tables.items() if tensor is not None}


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.stride()


def _named(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
