"""`generate` for a file of prompts on many cards: the same files, shared by workers of Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tightfit.api.batches.batch import Batch, Finish, ItemDone, Tell, failure
from tightfit.api.batches.items import Item
from tightfit.api.generation.asked import Asked
from tightfit.api.generation.making import resume_beside
from tightfit.api.generation.prompting import BadPrompt, numbered_prompts
from tightfit.api.generation.saved_latents import latents_beside
from tightfit.cluster.card_names import card_names
from tightfit.cluster.encoding import require_ray
from tightfit.cluster.leftovers import alone, sweep
from tightfit.cluster.prompt_places import cards_that_take
from tightfit.cluster.prompt_queue import Note, run
from tightfit.cluster.prompt_task import PromptDone, PromptOrder, PromptTask
from tightfit.cluster.reaching import reach
from tightfit.errors import Cancelled, InputError, UsageError

if TYPE_CHECKING:
    from tightfit.cluster.connection import Connection

_MEMORY = {"vram": None, "reserve": None, "mode": "auto", "allocator": None}
_CODING = {"tile": "auto", "overlap": None, "estimate": True, "allow_cpu": False}


def generate_on_cards(
    pipeline: str | Path,
    prompts: str | Path,
    *,
    out: str | Path,
    cards: str | None = None,
    address: str | None = None,
    pickles: bool = False,
    tell: Tell | None = None,
    finish: Finish | None = None,
    note: Note | None = None,
    **options: Any,
) -> Batch:
    """Make the prompts of a file, one a line, on several cards at once.

    The files are those that `tightfit.generate` writes on one card of the kind: their names, their
    seeds, what stands in them. Each card has a worker of its own, which loads the pipeline once.

    Args:
        pipeline: a SPEC.
        prompts: a file with one prompt a line.
        out: as for `generate`: OUT-0001 and so on.
        cards: ``cuda:0,cuda:1``, ``virtual:2x6GiB``, ``cpu``; by default every CUDA card, and
            without one the CPU. One that has no room for a prompt takes no part.
        address: of a Ray cluster that runs; by default one is started here, for this job.
        pickles: whether weights may come from a pickle.
        tell, finish: called after each prompt, as for `encode_all`.
        note: told what a user should know of the job as a whole.
        options: those of `generate`, but for its card and preview.

    Returns:
        What became of each line, in their order.

    Raises `UsageError`, `InputError` and `MemoryShortage` for what is wrong with all of it, before
    anything is loaded; `JobFailed` where no worker is left. What is written stays; with ``resume``
    the same call goes on from there.
    """
    require_ray()
    if options.get("preview") is not None:
        raise UsageError("--preview shows one card at work; drop it with --engine ray.")
    file = Path(prompts)
    lines = [
        (number, text, Path(f"{file}:{line}"))
        for number, (line, text) in enumerate(numbered_prompts(file), 1)
    ]
    memory = {name: options.pop(name, usual) for name, usual in _MEMORY.items()}
    coding = {name: options.pop(name, usual) for name, usual in _CODING.items()}
    wanted = {key: value for key, value in options.items() if key != "preview"}
    wanted["out"] = str(out)
    tiles = {"tile": coding["tile"], "overlap": coding["overlap"]}
    asked = Asked.of(str(pipeline), prompts=len(lines), **wanted, **tiles)
    wanted["seed"] = asked.seeds[0]
    tasks = [
        PromptTask(number, text, source, _first(asked, number))
        for number, text, source in lines
        if not isinstance(text, BadPrompt)
    ]
    names = None if address else card_names(cards, count=torch.cuda.device_count())
    if names is not None:
        names = _taking(asked, tasks, names, memory, coding, note)
    order = PromptOrder(
        str(pipeline),
        len(lines),
        wanted,
        memory,
        coding,
        pickles,
        torch.get_num_threads(),
        Path.cwd(),
    )
    folder = asked.out.absolute().parent if asked.out is not None else Path.cwd()
    if address and tasks:
        reach(address, folder)
    job = _Job(len(lines), tell, finish, note)
    for number, text, source in lines:
        if isinstance(text, BadPrompt):
            item = Item(source, _first(asked, number))
            job.take(PromptDone(number, failure(item, InputError(f"{text.reason}."))))
    with alone(folder), _swept(asked, len(lines)):
        if tasks:
            with _engine(address, cards, names) as connection:
                job.run(tasks, order, connection)
    return job.batch


def _first(asked: Asked, number: int) -> Path:
    outs = asked.outs(number)
    assert outs is not None
    return outs[0]


def _taking(
    asked: Asked,
    tasks: Sequence[PromptTask],
    names: tuple[str, ...],
    memory: dict[str, Any],
    coding: dict[str, Any],
    note: Note | None,
) -> tuple[str, ...]:
    """The cards that take part. What is wrong with the memory options is said here."""
    for name in dict.fromkeys(names):
        if not name.startswith("cuda"):  # a look at one of those would take memory of it
            asked.chosen.memory(card=name, dtype=asked.dtype, **memory)
    if not coding["estimate"] or asked.weights is not None:
        return names[: max(1, len(tasks))]
    taking = cards_that_take(asked, [str(task.source) for task in tasks], names, memory)
    for each in taking.notes:
        if note is not None:
            note(each)
    return taking.cards


@contextmanager
def _swept(asked: Asked, count: int) -> Iterator[None]:
    """What killed workers left of the job's files goes, before and afterwards."""
    files: list[Path] = []
    for number in range(1, count + 1):
        outs = asked.outs(number) or ()
        files += [*outs, *map(latents_beside, outs), *map(resume_beside, outs)]
        files += asked.latent_files(number) or ()
    folders = {file.absolute().parent for file in files}
    for folder in folders:
        sweep(folder, files)
    try:
        yield
    finally:
        for folder in folders:
            sweep(folder, files)


def _engine(
    address: str | None, cards: str | None, names: Sequence[str] | None
) -> AbstractContextManager[Connection]:
    from tightfit.cluster.connection import joined, started

    if names is None:
        assert address is not None
        return joined(address, cards)
    return started(names)


class _Job:
    """What has ended of a job."""

    def __init__(
        self, count: int, tell: Tell | None, finish: Finish | None, note: Note | None
    ) -> None:
        self._count, self._tell, self._finish, self._note = count, tell, finish, note
        self._ended: dict[int, ItemDone] = {}

    @property
    def batch(self) -> Batch:
        """In the order of the lines."""
        return Batch("generate", tuple(done for _, done in sorted(self._ended.items())))

    def run(self, tasks: Sequence[PromptTask], order: PromptOrder, connection: Connection) -> None:
        """Until every task has ended. An interrupt goes on, with a note of what is done."""
        from tightfit.cluster.crew import RayCrew

        crew = RayCrew(order, connection)
        try:
            for done in run(tasks, crew, seats=len(connection.cards), note=self._note):
                self.take(done)
        except (KeyboardInterrupt, Cancelled) as stop:
            stop.add_note(
                f"{len(self._ended)} of {self._count} are done; the same command with --resume "
                f"and --seed {order.options['seed']} goes on from there"
            )
            raise

    def take(self, prompt: PromptDone) -> None:
        """One ended."""
        done = prompt.done
        self._ended[prompt.number] = done
        if self._finish is not None:
            self._finish(done)
        if self._tell is not None:
            self._tell(len(self._ended), self._count, Item(done.source, done.out))
