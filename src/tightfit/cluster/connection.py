"""A Ray that runs: one that is started here and ends with the job, or a cluster that is joined."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tightfit.cluster.orphans import end_orphans, job_folder
from tightfit.cluster.seats import Seats
from tightfit.errors import JobFailed, UsageError
from tightfit.settings import environ_with
from tightfit.units import MIB

NAMESPACE = "tightfit"
CARD = "tightfit_card"
"""The resource of a local Ray of which each card is one."""
_STORE = (80 * MIB, 0.3)
"""Of a local object store: the least that Ray takes, and the most as a part of what is free."""
_STARTS = 2
_SHORT = 40
"""Longest folder in which Ray's sockets get names that the system takes."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Nothing is sent, nothing is printed, workers are as urgent as a job of one process, and which
card one takes is told by its seat. Some of it Ray reads when it is imported."""
_ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
}
"""Of one machine: it listens on localhost alone, and that it is busy does not mean it is dead."""


@dataclass(frozen=True)
class Connection:
    """What an engine has to work with.

    Attributes:
        address: of a cluster that was joined; None of a Ray that was started here.
        cards: a name for each card; an actor takes one of them (`take_card`).
        store_bytes: of the object store on each machine; of several, the smallest.
        seats: who has which card, of a Ray that was started here.
    """

    address: str | None
    cards: tuple[str, ...]
    store_bytes: int
    seats: Seats | None = None

    @property
    def card_args(self) -> dict[str, Any]:
        """What an actor that works on one card asks Ray for; CPUs are left to readers."""
        if self.seats is not None:
            return {"num_cpus": 0, "resources": {CARD: 1}}
        if self.cards[0].startswith("cuda"):
            return {"num_cpus": 0, "num_gpus": 1}
        return {"num_cpus": 1}

    def take_card(self) -> str:
        """Called in an actor with `card_args`, once: the name of the card that is its own."""
        if self.seats is not None:
            return self.cards[self.seats.take()]
        return "cuda:0" if self.cards[0].startswith("cuda") else self.cards[0]


@contextmanager
def started(
    cards: Sequence[str], *, cpus: int | None = None, store_bytes: int | None = None
) -> Iterator[Connection]:
    """A Ray on this machine, for as long as the body runs; nothing of it is left behind.

    It listens on localhost alone, shows no dashboard, sends no statistics, and prints nothing.

    Args:
        cards: the name of each card; see `card_names`.
        cpus: for readers; by default as many as the machine has.
        store_bytes: of the object store; by default a part of the memory that is free.

    Raises `JobFailed` where it does not start.
    """
    with environ_with({**_ENVIRONMENT, **_ALONE}):
        import ray

    size = store_bytes or default_store()
    with _folder() as folder, _signals():
        _start(
            num_cpus=cpus,
            num_gpus=0,
            resources={CARD: len(cards)},
            object_store_memory=size,
            _temp_dir=str(folder),
        )
        try:
            yield Connection(None, tuple(cards), size, Seats(folder / "seats", len(cards)))
        finally:
            ray.shutdown()


@contextmanager
def joined(address: str, cards: str | None = None) -> Iterator[Connection]:
    """A cluster that runs at `address` (``HOST:PORT``, or ``auto``), left as it was.

    By default each of its GPUs is a card, and where it has none, the CPU of each machine. Look with
    `tightfit.cluster.reaching.reach` first: it waits for a limited time. Raises `UsageError` for
    cards that the cluster does not have.
    """
    with environ_with(_ENVIRONMENT):
        import ray

    with _signals():
        with environ_with(_ENVIRONMENT), _hushed():
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                namespace=NAMESPACE,
            )
        try:
            yield Connection(address, _cards_of_cluster(cards), _smallest_store())
        finally:
            ray.shutdown()


def _start(**terms: Any) -> None:
    """Once more where a busy machine was too slow for Ray's patience. Raises `JobFailed`."""
    import ray

    for left in reversed(range(_STARTS)):
        try:
            with environ_with({**_ENVIRONMENT, **_ALONE}), _hushed():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    namespace=NAMESPACE,
                    _node_ip_address="127.0.0.1",
                    **terms,
                )
            return
        except Exception as error:
            ray.shutdown()
            if not left:
                raise JobFailed(f"Ray did not start on this machine: {_first(error)}") from error


def default_store() -> int:
    """Bytes of a local object store: a part of the memory and of /dev/shm that is free."""
    least, part = _STORE
    free = psutil.virtual_memory().available
    with suppress(OSError):
        free = min(free, shutil.disk_usage("/dev/shm").free)
    return max(least, int(free * part))


def _cards_of_cluster(asked: str | None) -> tuple[str, ...]:
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    machines = [node for node in ray.nodes() if node["Alive"]]
    if asked is None:
        return ("cuda:0",) * gpus or ("cpu",) * len(machines)
    from tightfit.cluster.card_names import card_names

    names = card_names(asked, count=gpus)
    kinds = {"cuda" if name.startswith("cuda") else name for name in names}
    if len(kinds) > 1:
        raise UsageError(
            f"--cards `{asked}`: in a cluster that others started all cards of a job are alike; "
            "name one kind, once for each card."
        )
    return names


def _smallest_store() -> int:
    import ray

    sizes = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes()]
    return int(min((size for size in sizes if size), default=_STORE[0]))


@contextmanager
def _folder() -> Iterator[Path]:
    """A short one for Ray's sockets and logs; what killed jobs left goes first."""
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= _SHORT else Path("/tmp")
    end_orphans(base)
    with job_folder(base) as folder:
        yield folder


@contextmanager
def _hushed() -> Iterator[None]:
    """Ray's own process says below Python which level of its log was set; nobody has to read it."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _signals() -> Iterator[None]:
    """Ray takes SIGTERM; it is given back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
