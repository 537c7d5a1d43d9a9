"""Code that asks whether something is true, run without values: both answers are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")

MOST = 1000
"""Questions in one run: a loop that waits for something would ask for ever."""


class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While inside, a truth that lies on the meta device is `answer` whenever it is asked.

    Attributes:
        asked: how often.
    """

    def __init__(self, answer: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = 0
        self._answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is not torch.ops.aten._local_scalar_dense.default or not _is_truth(args[0]):
            return func(*args, **(kwargs or {}))
        self.asked += 1
        if self.asked > MOST:
            raise RuntimeError(f"its code asks more than {MOST} times whether something is true")
        return self._answer


def either(run: Callable[[], T]) -> list[T]:
    """What `run` gives where all it asks is false, and where all is true; once if it asks nothing.

    Text encoders ask so whether a mask hides anything. Of two answers, of which one leads to an
    error, the other counts: the error of the first is raised where both do.
    """
    answers = Answers(False)
    try:
        with answers:
            given = [run()]
    except Exception:
        if not answers.asked:
            raise
        try:
            with Answers(True):
                return [run()]
        except Exception:  # the first is what is told
            pass
        raise
    if answers.asked:
        try:
            with Answers(True):
                given.append(run())
        except Exception:  # nobody's: the real call will not come that way
            pass
    return given


def _is_truth(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" and tensor.dtype is torch.bool
