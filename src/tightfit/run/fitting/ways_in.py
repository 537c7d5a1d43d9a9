"""All ways into a module while it is fitted: calls, what changes its weights, and its parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tightfit.run.fitting.alterations import Alter, Alterations
from tightfit.run.fitting.entries import Enter, Entries
from tightfit.run.fitting.part_doors import PartDoors


class WaysIn:
    """They are open from the beginning until `close`; those into parts where they are asked for.

    Whoever is entered is known by the module until then: a cycle that would keep weights.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        enter: Enter,
        alter: Alter,
        write: Alter,
        note: Callable[[str], None],
        *,
        home: torch.device | None = None,
    ) -> None:
        """`enter` gets calls, `alter` and `write` methods that change weights; see `Alterations`.

        `device`, `home` and `note` are for the guard of `Entries`.
        """
        self._module, self._enter = module, enter
        self._parts: PartDoors | None = None
        self._entries = Entries(module, (device, home), enter, note)
        self._alterations = Alterations(module, alter, write)

    def open_parts(self) -> None:
        """Calls of parts come in as well; harmless when repeated."""
        if self._parts is None:
            self._parts = PartDoors(self._module, self._enter)

    def close_parts(self) -> None:
        """Calls of parts are what they were; harmless when repeated."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def close(self) -> None:
        """Everything is as it was; harmless when repeated."""
        self.close_parts()
        self._entries.close()
        self._alterations.close()
