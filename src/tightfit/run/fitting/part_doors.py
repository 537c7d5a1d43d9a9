"""The ways into the parts of a module that is at rest, for whoever calls them by themselves."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tightfit.place.streaming.compiled import Door
from tightfit.run.fitting.entries import Enter


class PartDoors:
    """While they are open, a call of any part goes through one function, under the part's path.

    Pipelines call a vision tower, or an encoder's inner model, without the whole around it. Where
    weights are placed, they come with the layers; at rest, the whole has to be woken before. In a
    call of the whole they would be in the way: they are closed then.
    """

    def __init__(self, module: nn.Module, enter: Enter) -> None:
        self._doors = [
            Door(part, partial(enter, path))
            for path, part in module.named_modules()
            if part is not module and not isinstance(part, torch.jit.ScriptModule)
        ]

    def close(self) -> None:
        """Calls of parts are what they were; harmless when repeated."""
        while self._doors:
            self._doors.pop().remove()
