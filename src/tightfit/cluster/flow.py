"""The pipeline in Ray Data: a list of items, readers on CPUs, an encoder for each card."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import ray
import ray.data

from tightfit.cluster.connection import Connection
from tightfit.cluster.encoder import Encoder, finished_of
from tightfit.cluster.far_desk import FarDesk
from tightfit.cluster.reader import Reader
from tightfit.cluster.task import Finished, Order, Task
from tightfit.errors import JobFailed

_AHEAD = 2
"""Items that wait at a card, the one in work among them."""
_BLOCKS = 4_000
"""Ray tasks that items are shared by; a task of several reads one after the other."""
_ERRANDS = 2
_PART_OF_STORE = 0.5
"""Of the object store, for decoded items that wait; the rest is for those being passed on."""


class _CardWorker:
    """An `Encoder` on the card that this process takes."""

    def __init__(self, order: Order, desk: FarDesk, connection: Connection) -> None:
        self._encoder = Encoder(order, desk, connection.take_card())

    def __call__(self, table: pa.Table) -> pa.Table:
        return self._encoder(table)


def run(tasks: Sequence[Task], order: Order, connection: Connection) -> Iterator[Finished]:
    """Every task's end, in the order in which they end.

    Decoded items wait in at most half of the object store. Workers that die are started anew, and
    what they worked on is done again. Raises `JobFailed` where Ray itself gives up.
    """
    desk = FarDesk.opened(int(connection.store_bytes * _PART_OF_STORE))

    def read(table: pa.Table) -> Iterator[pa.Table]:
        machine = ray.get_runtime_context().get_node_id()
        told = (pickle.loads(each.as_buffer()) for each in table["task"])
        yield from Reader(order, desk, machine)(told)

    with _quiet() as context:
        context.target_max_block_size = 1  # each item is passed on by itself
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        items = ray.data.from_items(rows, override_num_blocks=min(len(rows), _BLOCKS))
        parcels = items.map_batches(read, batch_size=None, batch_format="pyarrow", num_cpus=1)
        finished = parcels.map_batches(
            _CardWorker,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(order, desk, connection),
            compute=ray.data.ActorPoolStrategy(
                size=len(connection.cards), max_tasks_in_flight_per_actor=_AHEAD
            ),
            **connection.card_args,
        )
        try:
            for table in finished.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=0
            ):
                yield from finished_of(table)
        except Exception as error:  # of Ray's: who consumes raises elsewhere
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise JobFailed(f"Ray gave up: {first}. What is written stays.") from error


class Errands:
    """Work beside the pipeline, a little of it at once, in processes of Ray's."""

    def __init__(self) -> None:
        self._running: list[Any] = []
        self._error: Exception | None = None

    def send(self, work: Callable[..., object], *arguments: object) -> None:
        """Do ``work(*arguments)``, which may be done twice where a process dies."""
        while len(self._running) >= _ERRANDS:
            self._collect()
        errand = ray.remote(work).options(num_cpus=0, max_retries=-1)
        self._running.append(errand.remote(*arguments))

    def wait(self) -> None:
        """Until all is done. Raises the first error of any."""
        while self._running:
            self._collect()
        if self._error is not None:
            raise self._error

    def _collect(self) -> None:
        (ready,), self._running = ray.wait(self._running)
        try:
            ray.get(ready)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            self._error = self._error or cause


@contextmanager
def _quiet() -> Iterator[Any]:
    """Ray Data says nothing: what is worth saying is told of each item."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield context
    finally:
        logger.setLevel(before)
