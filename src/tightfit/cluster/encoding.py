"""`encode_all` on many cards: the same items, the same bytes, shared by workers of Ray."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tightfit.adapters import parse_dtype
from tightfit.api.batches.batch import Batch, Finish, ItemDone, Tell
from tightfit.api.batches.coding_all import (
    folder_of,
    items_to_encode,
    selection_of,
    settings_of,
)
from tightfit.api.batches.items import Item
from tightfit.api.batches.made_from import told_of
from tightfit.api.memory import open_memory
from tightfit.api.work import Chosen
from tightfit.cluster.card_names import card_names
from tightfit.cluster.leftovers import alone, sweep
from tightfit.cluster.manifest import is_manifest, read_manifest
from tightfit.cluster.reaching import reach
from tightfit.cluster.records import FAILED, MANIFEST, Records
from tightfit.cluster.shards.groups import PARTS, Sharding, assemble
from tightfit.cluster.task import Finished, Order, Task
from tightfit.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from tightfit.cluster.connection import Connection
    from tightfit.cluster.flow import Errands

_MEMORY = ("vram", "reserve", "mode", "allocator", "tile", "overlap", "estimate", "allow_cpu")


def encode_on_cards(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    vae: str,
    cards: str | None = None,
    address: str | None = None,
    cpus: int | None = None,
    store_bytes: int | None = None,
    shards: int | None = None,
    shard_format: str | None = None,
    pickles: bool = False,
    tell: Tell | None = None,
    finish: Finish | None = None,
    **options: Any,
) -> Batch:
    """Encode many pictures and clips to ``OUT/NAME.safetensors``, on several cards at once.

    What `tightfit.encode_all` would write on one card of the kind, byte for byte, and as there,
    what is there and right is kept. Beside the outputs stand ``manifest.jsonl`` (what was made of
    what) and, where some failed, ``failed.jsonl``.

    Args:
        sources: as for `encode_all`, or a manifest (`read_manifest`).
        out, vae, tell, finish, options: as for `encode_all`; `vae` is a SPEC, and `tell` is called
            after each item.
        cards: ``cuda:0,cuda:1``, ``virtual:2x6GiB``, ``cpu``; by default every CUDA card, and
            without one the CPU.
        address: of a Ray cluster that runs; by default one is started here, for this job.
        cpus: for reading, of a Ray that is started here; by default all.
        store_bytes: of its object store; half of it may hold decoded items that wait.
        shards: so many outputs go into one file, ``OUT/shard-000000`` and so on, in the order of
            the items. shard_format: of these, ``safetensors`` or ``webdataset``.
        pickles: whether weights may come from a pickle.

    Raises `UsageError` and `InputError` for what is wrong with all of it, before anything is read;
    `JobFailed` where Ray fails. What is written stays, and the same call goes on from there.
    """
    require_ray()
    sharding = _sharding(shards, shard_format)
    selection = selection_of(options)
    parse_dtype(options.get("dtype", "auto"))
    chosen = Chosen.of(vae)
    names = None if address else card_names(cards, count=torch.cuda.device_count())
    if names is not None and not names[0].startswith("cuda"):
        open_memory(card=names[0], **{key: options[key] for key in _MEMORY if key in options})
    given = [sources] if isinstance(sources, (str, Path)) else list(sources)
    hashes: dict[Path, str | None] = {}
    if is_manifest(given):
        entries = read_manifest(Path(given[0]).expanduser())
        folder = folder_of(out)
        items = tuple(Item(each.path, folder / f"{each.name}.safetensors") for each in entries)
        hashes = {each.path: each.sha256 for each in entries}
    else:
        items = items_to_encode(given, out, chosen)
        folder = items[0].out.parent
    order = Order(
        _everywhere(vae),
        told_of(chosen),
        chosen.traits,
        options,
        settings_of(options),
        selection,
        pickles,
        torch.get_num_threads(),
    )
    parts = folder if sharding is None else folder / PARTS
    tasks = [
        Task(
            index,
            item.out.stem,
            item.source.absolute(),
            (parts / item.out.name).absolute(),
            hashes.get(item.source),
            None if sharding is None else sharding.place(folder.absolute(), index),
        )
        for index, item in enumerate(items)
    ]
    if address:
        reach(address, folder)
    written = [*(t.shard for t in tasks if t.shard), folder / MANIFEST, folder / FAILED]
    job = _Job(tasks, [item.source for item in items], folder, tell, finish)
    with (
        alone(folder),
        _swept(folder, parts, [*(task.out for task in tasks), *written]),
        _engine(address, cards, names, cpus, store_bytes) as connection,
    ):
        return job.run(order, connection)


def require_ray() -> None:
    """Raises `UsageError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError(
            "--engine ray needs Ray, which is not installed: pip install 'tightfit[cluster]'."
        )


def _sharding(count: int | None, form: str | None) -> Sharding | None:
    if count is None:
        if form is not None:
            raise UsageError("--shard-format goes with --shards: say how many items a shard holds.")
        return None
    return Sharding(count, form or "safetensors")


@contextmanager
def _swept(folder: Path, parts: Path, written: Sequence[Path]) -> Iterator[None]:
    """What killed workers left of files that are `written` goes, before and afterwards."""
    sweep(folder, written)
    if parts != folder:
        parts.mkdir(exist_ok=True)
        sweep(parts, written)
    try:
        yield
    finally:
        sweep(folder, written)
        if parts != folder:
            sweep(parts, written)
            with suppress(OSError):
                parts.rmdir()


def _engine(
    address: str | None,
    cards: str | None,
    names: Sequence[str] | None,
    cpus: int | None,
    store_bytes: int | None,
) -> AbstractContextManager[Connection]:
    from tightfit.cluster.connection import joined, started

    if names is None:
        assert address is not None
        return joined(address, cards)
    return started(names, cpus=cpus, store_bytes=store_bytes)


class _Job:
    """What is kept of a job while it runs; the records are written whatever happens."""

    def __init__(
        self,
        tasks: Sequence[Task],
        sources: Sequence[Path],
        folder: Path,
        tell: Tell | None,
        finish: Finish | None,
    ) -> None:
        self._tasks, self._sources, self._folder = tasks, sources, folder
        self._tell, self._finish = tell, finish
        self._records = Records(folder, tasks)
        self._ended: dict[int, ItemDone] = {}
        self._shards = defaultdict[Path, list[Task]](list)
        for task in tasks:
            if task.shard is not None:
                self._shards[task.shard].append(task)
        self._waiting = {shard: len(those) for shard, those in self._shards.items()}

    def run(self, order: Order, connection: Connection) -> Batch:
        """Until every item has ended. An interrupt goes on, with a note of what is done."""
        from tightfit.cluster.flow import Errands, run

        errands = Errands()
        try:
            for finished in run(self._tasks, order, connection):
                self._take(finished)
                self._gather(self._tasks[finished.index], errands)
            errands.wait()
        except (KeyboardInterrupt, Cancelled) as stop:
            stop.add_note(
                f"{len(self._ended)} of {len(self._tasks)} are done; the same command goes on from "
                "there"
            )
            raise
        finally:
            self._records.write()
        return Batch("encode", tuple(done for _, done in sorted(self._ended.items())))

    def _take(self, finished: Finished) -> None:
        """As the user named it."""
        task, source = self._tasks[finished.index], self._sources[finished.index]
        error, named = finished.done.error, str(source)
        if error is not None:
            error = error.replace(str(task.source), named)
        out = self._folder / (task.out if task.shard is None else task.shard).name
        done = replace(finished.done, source=source, out=out, error=error)
        self._records.add(replace(finished, done=done))
        self._ended[finished.index] = done
        if self._finish is not None:
            self._finish(done)
        if self._tell is not None:
            self._tell(len(self._ended), len(self._tasks), Item(source, out))

    def _gather(self, task: Task, errands: Errands) -> None:
        """Put a shard together when the last of its items has ended."""
        if task.shard is None:
            return
        self._waiting[task.shard] -= 1
        if self._waiting[task.shard]:
            return
        good = []
        for each in self._shards[task.shard]:
            if self._ended[each.index].outcome == "failed":
                each.out.unlink(missing_ok=True)
            else:
                good.append(each)
        errands.send(assemble, task.shard, [each.name for each in good], task.out.parent)


def _everywhere(vae: str) -> str:
    """The SPEC, as it means the same from another folder."""
    path = Path(vae).expanduser()
    return str(path.absolute()) if path.exists() else vae
