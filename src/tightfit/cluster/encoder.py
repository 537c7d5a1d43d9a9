"""What runs on a card: what was read of an item is encoded, written, and told of."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import torch

from tightfit.api.batches.batch import do_one
from tightfit.api.batches.coding_all import make_latent
from tightfit.api.work import Chosen
from tightfit.card import Card, open_card
from tightfit.cluster.desk import TRIES
from tightfit.cluster.parcel import Delivered, Parcel, from_table
from tightfit.cluster.reader import Asked, fell, output_of
from tightfit.cluster.task import Finished, Order, Task
from tightfit.report.record import Report
from tightfit.weigh.files.pickles import pickles_allowed


class Encoder:
    """One VAE on one card: what arrives is encoded, written, and told of."""

    def __init__(self, order: Order, desk: Asked, card: str | Card) -> None:
        """The VAE is loaded with the first item."""
        torch.set_num_threads(order.threads)
        self._order, self._desk = order, desk
        self._card = card if isinstance(card, Card) else open_card(card)
        self._chosen = Chosen.of(order.vae).shared()

    def __call__(self, table: pa.Table) -> pa.Table:
        """One row in, one row out."""
        parcel = from_table(table)
        finished = self._one(parcel, parcel.task)
        self._desk.done(parcel.task.index)
        return finished_table(finished)

    def _one(self, parcel: Parcel, task: Task) -> Finished:
        made, footage = parcel.made, parcel.footage
        source = None if made is None else made["sha256"]
        done = parcel.done
        if done is None:
            assert made is not None
            assert footage is not None
            if self._desk.begin(task.index, "encode") >= TRIES:
                done = fell(task, "encoded")
            else:
                with pickles_allowed(self._order.pickles):
                    done = do_one(
                        task.item,
                        lambda _: self._make(task, Delivered(footage), made),
                        lambda _: False,
                        self._card,
                    )
        if done.outcome == "failed":
            return Finished(task.index, done, source)
        return Finished(task.index, done, source, *(parcel.output or output_of(task.out)))

    def _make(self, task: Task, footage: Delivered, made: dict[str, Any]) -> Report:
        return make_latent(task.out, footage, made, self._chosen, self._card, self._order.options)


def finished_table(finished: Finished) -> pa.Table:
    """One row."""
    return pa.table({"finished": pa.array([pickle.dumps(finished)], type=pa.large_binary())})


def finished_of(table: pa.Table) -> list[Finished]:
    """Those of its rows."""
    return [pickle.loads(each.as_buffer()) for each in table["finished"]]
