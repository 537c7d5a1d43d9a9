"""A model on a shared card, and for whom it is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.run.fitting.fitted import Fitted
from tightfit.units import format_bytes


class Alone:
    """The user of a module that was fitted for itself, rather than as a part of a pipeline."""


@dataclass(frozen=True)
class Guest:
    """What lies on a card for a network of another one."""

    network: Fitted

    @property
    def taken(self) -> int:
        """Bytes here."""
        return self.network.parked

    def rest(self) -> int:
        """It leaves; its network, which has to rest for that, streams from the host then.

        0 where that is at work.
        """
        try:
            self.network.rest()
        except UsageError:
            return 0
        return self.network.leave_annexe()


@dataclass(eq=False)
class Taken:
    """A model on a shared card.

    Attributes:
        name: on the card.
        module: the user's.
        size: bytes of its weights when it came.
        home: the card that pipelines believe it to be on: theirs.
        home_gives: lets the next that is idle there rest; bytes that came free.
        network: what fits it; None for a VAE, which is on the card only while it codes.
        users: for whom; it goes when the last of them does.
        seconds: that its calls took, waits for the card included.
        coded: calls of a VAE.
        undo: what gives the module back.
    """

    name: str
    module: nn.Module
    size: int
    home: torch.device
    home_gives: Callable[[], int]
    network: Fitted | None = None
    users: list[object] = field(default_factory=list)
    seconds: float = 0.0
    coded: int = 0
    undo: ExitStack = field(default_factory=ExitStack)

    @property
    def calls(self) -> int:
        """That were made."""
        return self.coded if self.network is None else self.network.calls

    @property
    def taken(self) -> int:
        """Bytes of the card between calls."""
        return 0 if self.network is None else self.network.taken

    @property
    def has_been_placed(self) -> bool:
        """Whether its weights were on the card, and have their masters on the host since then."""
        return self.network is not None and bool(self.network.changes)

    def rest(self) -> int:
        """As the shelf asks it."""
        try:
            return 0 if self.network is None else self.network.rest()
        except UsageError:  # it is at work
            return 0

    def explain(self, name: str) -> str:
        """A line."""
        size = format_bytes(self.size)
        where = f"{format_bytes(self.taken)} on the card now"
        if self.network is not None and self.network.parked:
            other = self.network.terms.annexe
            assert other is not None
            where += f" and {format_bytes(self.network.parked)} on {other.card.name}"
        if self.network is None:
            where = "on the card while it codes"
        elif self.network.rests:
            where = "at rest"
        shared = f", for {len(self.users)}" if len(self.users) > 1 else ""
        return f"{name}: {size}, {where}, {self.calls} calls in {self.seconds:.1f} s{shared}"
