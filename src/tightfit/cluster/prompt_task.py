"""What every worker of a queue of prompts is told: the same for all, and one line for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.api.batches.batch import ItemDone
from tightfit.api.batches.items import Item


@dataclass(frozen=True)
class PromptOrder:
    """How prompts are made.

    Attributes:
        pipeline: a SPEC.
        count: of the prompts in all.
        options: of what is asked (`Asked.of`), with the seed.
        memory: options of the workplace, but for its card.
        coding: options of `Codes`.
        pickles: whether the tensors of pickles may be read.
        threads: that arithmetic on a CPU is shared by, which decides about its last bits.
        folder: that paths are relative to.
    """

    pipeline: str
    count: int
    options: Mapping[str, Any]
    memory: Mapping[str, Any]
    coding: Mapping[str, Any]
    pickles: bool
    threads: int
    folder: Path


@dataclass(frozen=True)
class PromptTask:
    """One prompt.

    Attributes:
        number: among the prompts, from 1.
        text: of it.
        source: its file and line, for people.
        out: the first of its files.
        fallen: workers that died over it.
    """

    number: int
    text: str
    source: Path
    out: Path
    fallen: int = 0

    @property
    def item(self) -> Item:
        """As batches know it."""
        return Item(self.source, self.out)


@dataclass(frozen=True)
class PromptDone:
    """What became of prompt `number`."""

    number: int
    done: ItemDone
