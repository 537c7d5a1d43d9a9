"""What has to be on the card while certain modules are being called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from tightfit.place.streaming.running import Call


class Brought(ABC):
    """Brought as a call begins, and let go as it ends.

    Attributes:
        name: for traces.
        anchors: paths of the modules at whose calls it has to be there.
        head: the module whose call covers every use.
        called: a call of `head` is under way.
        is_traced: calls wait for it, so traces tell of it.
    """

    is_traced = False

    def __init__(self, name: str, anchors: Sequence[str], head: nn.Module) -> None:
        self.name = name
        self.anchors = tuple(anchors)
        self.head = head
        self.called = False

    @abstractmethod
    def is_full(self) -> bool:
        """Whether bringing it would need memory that is not there yet."""

    @abstractmethod
    def bring(self, call: Call) -> None:
        """It is there when what is queued from now on runs.

        Has to be followed by `let_go` with the same `call`, also where it raises.
        """

    @abstractmethod
    def let_go(self, call: Call) -> None:
        """The use by `call` ends, if there was one."""
