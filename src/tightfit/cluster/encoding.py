"""`encode_all` on many cards: the same items, the same bytes, shared by workers of Ray."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tightfit.adapters import parse_dtype
from tightfit.api.batches.batch import Batch, Finish, ItemDone, Tell
from tightfit.api.batches.coding_all import items_to_encode, selection_of, settings_of
from tightfit.api.batches.items import Item
from tightfit.api.batches.made_from import told_of
from tightfit.api.memory import open_memory
from tightfit.api.work import Chosen
from tightfit.cluster.card_names import card_names
from tightfit.cluster.leftovers import alone, sweep
from tightfit.cluster.records import FAILED, MANIFEST, Records
from tightfit.cluster.task import Order, Task
from tightfit.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from tightfit.cluster.connection import Connection

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
        sources, out, vae, tell, finish, options: as for `encode_all`; `vae` is a SPEC, and `tell`
            is called after each item.
        cards: ``cuda:0,cuda:1``, ``virtual:2x6GiB``, ``cpu``; by default every CUDA card, and
            without one the CPU.
        address: of a Ray cluster that runs; by default one is started here, for this job.
        cpus: for reading, of a Ray that is started here; by default all.
        store_bytes: of its object store; half of it may hold decoded items that wait.
        pickles: whether weights may come from a pickle.

    Raises `UsageError` and `InputError` for what is wrong with all of it, before anything is read;
    `JobFailed` where Ray fails. What is written stays, and the same call goes on from there.
    """
    require_ray()
    selection = selection_of(options)
    parse_dtype(options.get("dtype", "auto"))
    chosen = Chosen.of(vae)
    names = None if address else card_names(cards, count=torch.cuda.device_count())
    if names is not None and not names[0].startswith("cuda"):
        open_memory(card=names[0], **{key: options[key] for key in _MEMORY if key in options})
    items = items_to_encode(sources, out, chosen)
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
    tasks = [
        Task(index, item.out.stem, item.source.absolute(), item.out.absolute())
        for index, item in enumerate(items)
    ]
    with alone(folder):
        swept = [*(item.out for item in items), folder / MANIFEST, folder / FAILED]
        sweep(folder, swept)
        try:
            with _engine(address, cards, names, cpus, store_bytes) as connection:
                done = _run(tasks, items, order, connection, folder, tell, finish)
        finally:
            sweep(folder, swept)
    return done


def require_ray() -> None:
    """Raises `UsageError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError(
            "--engine ray needs Ray, which is not installed: pip install 'tightfit[cluster]'."
        )


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


def _run(
    tasks: Sequence[Task],
    items: Sequence[Item],
    order: Order,
    connection: Connection,
    folder: Path,
    tell: Tell | None,
    finish: Finish | None,
) -> Batch:
    """The records are written whatever happens."""
    from tightfit.cluster.flow import run

    records = Records(folder, tasks)
    ended: dict[int, ItemDone] = {}
    try:
        for finished in run(tasks, order, connection):
            item = items[finished.index]
            done = replace(finished.done, source=item.source, out=item.out)
            records.add(replace(finished, done=done))
            ended[finished.index] = done
            if finish is not None:
                finish(done)
            if tell is not None:
                tell(len(ended), len(items), item)
    except (KeyboardInterrupt, Cancelled) as stop:
        stop.add_note(f"{len(ended)} of {len(items)} are done; the same command goes on from there")
        raise
    finally:
        records.write()
    return Batch("encode", tuple(done for _, done in sorted(ended.items())))


def _everywhere(vae: str) -> str:
    """The SPEC, as it means the same from another folder."""
    path = Path(vae).expanduser()
    return str(path.absolute()) if path.exists() else vae
