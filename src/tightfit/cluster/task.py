"""What every worker of a job is told: the same for all items, and one line for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.api.batches.batch import ItemDone
from tightfit.api.batches.items import Item
from tightfit.api.sources import Selection
from tightfit.run.vae import Traits


@dataclass(frozen=True)
class Order:
    """How items are encoded.

    Attributes:
        vae: a SPEC that means the same on every machine.
        told: of the VAE, for what an output is made of.
        traits: of the VAE.
        options: of `encode`.
        settings: those of them that change an output.
        selection: which part of each source.
        pickles: whether the tensors of pickles may be read.
        threads: that arithmetic on a CPU is shared by, which decides about its last bits.
    """

    vae: str
    told: Mapping[str, Any]
    traits: Traits
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    selection: Selection
    pickles: bool
    threads: int


@dataclass(frozen=True)
class Task:
    """One item, with paths that mean the same on every machine.

    Attributes:
        index: in the list of items.
        name: of the item, which names its output.
        source, out: absolute.
        sha256: that the source must have; None is any.
        shard: the file into which the output will go; None is none.
    """

    index: int
    name: str
    source: Path
    out: Path
    sha256: str | None = None
    shard: Path | None = None

    @property
    def item(self) -> Item:
        """As batches know it."""
        return Item(self.source, self.out)


@dataclass(frozen=True)
class Finished:
    """What became of one item.

    Attributes:
        index: in the list of items.
        done: as a batch tells it.
        source_sha256: of the source's bytes; None where they were not read.
        out_sha256, out_bytes: of the output; None where there is none.
    """

    index: int
    done: ItemDone
    source_sha256: str | None = None
    out_sha256: str | None = None
    out_bytes: int | None = None
