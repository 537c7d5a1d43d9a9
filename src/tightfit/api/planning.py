"""`make_plan`: what a job will need on a card, and what goes where, before anything is loaded.

A file is planned from its header alone, without torch. A folder, and ``random:NAME``, are run on
the meta device at the size of the job, which takes seconds and no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.card.host_memory import read_host_memory
from tightfit.card.outlook import Outlook, look
from tightfit.errors import InputError, UsageError
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.plan.plan import Plan, make
from tightfit.plan.residency import MODES, Mode
from tightfit.plan.size import Size
from tightfit.plan.supply import Supply
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.run.planning.demands import Model, demands_of
from tightfit.run.planning.supplies import supply_of
from tightfit.run.planning.weighed import STEPS, weigh_path
from tightfit.settings import ALLOCATORS

if TYPE_CHECKING:
    from tightfit.run.planning.weighed import Weighed

DTYPES = ("auto", "float32", "float16", "bfloat16")
USUAL = Size(1024, 1024)


@dataclass(frozen=True)
class Question:
    """Everything that a plan is made from; ask `plan` for other sizes and budgets too.

    Attributes:
        models: the stages of the job, weighed.
        size: of the job.
        card: on paper.
        amount: of it that may be used.
        mode: where weights live.
        tile: what was asked about tiles.
        notes: what is not predicted, taken for granted, or read from a table.
    """

    models: tuple[Model, ...]
    size: Size
    card: Outlook
    amount: Budget
    mode: Mode
    tile: TileWish
    notes: tuple[str, ...]

    def plan(self, *, size: Size | None = None, budget: int | None = None) -> Plan:
        """The plan at another size, or with a bare budget on a card that large."""
        supply = self._supply(budget)
        demands = demands_of(self.models, size or self.size, self.card, tile=self.tile)
        return make(demands, supply, mode=self.mode)

    def predicts(self, model: Model) -> bool:
        """Whether it is known what `model` needs beside its weights."""
        return model.gauge.at(self.size, allocator=self.card.allocator).dry is not None

    def heading(self, plan: Plan) -> str:
        """What was asked, in one line."""
        del plan
        names = ", ".join(dict.fromkeys(model.name for model in self.models))
        return f"{names} at {self.size}"

    def as_dict(self, plan: Plan) -> dict[str, Any]:
        """JSON values: the plan, and what it was made from."""
        working = [
            model.gauge.at(self.size, allocator=self.card.allocator) for model in self.models
        ]
        return {
            **plan.as_dict(),
            "size": asdict(self.size),
            "models": [
                {
                    "name": model.name,
                    "stage": model.stage,
                    "weight_bytes": model.weights.stored_bytes,
                    "converted_bytes": model.weights.converted_bytes,
                    "blocks": len(model.weights.blocks),
                    "order": model.weights.order,
                    "dry_bytes": needs.dry,
                    "allocated_bytes": needs.allocated,
                    "reserved_if_unbounded_bytes": needs.reserved,
                    "peak_operator": needs.at,
                    "source": needs.source,
                }
                for model, needs in zip(self.models, working, strict=True)
            ],
            "notes": list(self.notes),
        }

    def _supply(self, budget: int | None) -> Supply:
        amount, card = self.amount, self.card
        if budget is not None:
            total = budget + card.context + amount.reserve
            card = replace(card, total=total, held_by_others=0)
            amount = Budget(budget, amount.reserve)
        return supply_of(card, amount, read_host_memory())


def make_plan(
    model: str | Path | Sequence[str | Path],
    *,
    width: int | None = None,
    height: int | None = None,
    frames: int | None = None,
    batch: int = 1,
    card: str | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    allocator: str | None = None,
    dtype: str = "auto",
    tile: str = "auto",
    steps: int = STEPS,
    dry_run: bool = False,
) -> Plan:
    """Plan a job with `model` on a card, before anything is loaded.

    Args:
        model: a safetensors or GGUF file, a folder, ``random:NAME`` or ``mini:NAME``; or several.
        width, height, frames, batch: of the job, in pixels; by default what the model is usually
            asked for, else 1024x1024.
        card: ``cuda:0``, ``cpu``, ``virtual:SIZE`` or ``virtual:NAME`` of a known card; by default
            the first CUDA device, or with `vram` alone a bare card of that size.
        vram, reserve: bytes, or text such as ``6GiB``, ``80%``, ``-1GiB``.
        mode: ``auto``, ``high`` (all resident), ``low`` (only what saves time), ``none`` (all
            streamed).
        allocator: ``native``, ``async`` or ``expandable``, to plan for another than the card's.
        dtype: to compute in; ``auto`` is as stored.
        tile: of a VAE: ``auto`` where the whole does not fit, ``off``, or a size in pixels.
        steps: of a denoiser.
        dry_run: run a file's architecture on the meta device too, instead of using the table.

    Returns:
        The plan, also where the job does not fit: `Plan.fits` says, `Plan.explain()` tells.

    Raises `UsageError` for what cannot be meant, and `InputError` for what cannot be read.
    """
    return ask(
        model,
        width=width,
        height=height,
        frames=frames,
        batch=batch,
        card=card,
        vram=vram,
        reserve=reserve,
        mode=mode,
        allocator=allocator,
        dtype=dtype,
        tile=tile,
        steps=steps,
        dry_run=dry_run,
    ).plan()


def ask(
    model: str | Path | Sequence[str | Path],
    *,
    width: int | None = None,
    height: int | None = None,
    frames: int | None = None,
    batch: int = 1,
    card: str | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    allocator: str | None = None,
    dtype: str = "auto",
    tile: str = "auto",
    steps: int = STEPS,
    dry_run: bool = False,
) -> Question:
    """Like `make_plan`, for whoever wants to ask more than once."""
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype} is unknown: use {', '.join(DTYPES)}.")
    chosen = _mode(mode)
    if steps < 1:
        raise UsageError(f"--steps `{steps}` is below 1.")
    wish = BudgetWish.of(vram, reserve)
    specs = [str(one) for one in ([model] if isinstance(model, (str, Path)) else model)]
    if not specs:
        raise UsageError("Name a model to plan: a file, a folder, or random:NAME.")
    sized = card is None and wish.share is not None and wish.share.size is not None
    paper = look(card, size=wish.share.text if sized and wish.share is not None else None)
    paper = _with_allocator(paper, allocator)
    amount = wish.on(paper.name, paper.total)
    asked = None if dtype == "auto" else dtype
    if asked == "bfloat16" and paper.bf16 is False:
        raise UsageError(f"--dtype bfloat16: {paper.name} does not compute in it.")
    sources = [_source(spec, paper, asked, steps, dry_run) for spec in specs]
    usual = next((source.usual for source in sources if source.usual is not None), USUAL)
    size = Size(
        usual.width if width is None else width,
        usual.height if height is None else height,
        usual.frames if frames is None else frames,
        batch,
    )
    weighed = [source.weigh(size) for source in sources]
    notes = [] if paper.note is None else [paper.note]
    notes += [note for each in weighed for note in each.notes]
    return Question(
        models=tuple(one for each in weighed for one in each.models),
        size=size,
        card=paper,
        amount=amount,
        mode=chosen,
        tile=parse_tile(tile, None),
        notes=tuple(dict.fromkeys(notes)),
    )


@dataclass(frozen=True)
class _Source:
    """A model that was found; `weigh` does what takes long."""

    usual: Size | None
    weigh: Callable[[Size], Weighed]


def _source(spec: str, card: Outlook, dtype: str | None, steps: int, dry_run: bool) -> _Source:
    """By headers where that is enough, else through the libraries that know the model."""
    path = Path(spec).expanduser()
    named = spec.partition(":")[0] in ("random", "mini")
    if not named and not path.exists():
        raise InputError(
            f"Model `{spec}` is no file or folder here; use random:NAME for the true size of a "
            "known model. One on a hub has to be downloaded first."
        )
    if not named:
        weighed = weigh_path(path, dtype=dtype, bf16=card.bf16, steps=steps)
        if path.is_file() and not dry_run:
            return _Source(weighed.usual, lambda _: weighed)
        return _Source(
            weighed.usual, lambda size: _run_dry(path, weighed, size, card, dtype, steps)
        )
    from tightfit.api.parts_source import PartsSource

    parts = PartsSource.of(spec)
    return _Source(parts.usual, lambda size: parts.weigh(size, card, dtype=dtype, steps=steps))


def _run_dry(
    path: Path, weighed: Weighed, size: Size, card: Outlook, dtype: str | None, steps: int
) -> Weighed:
    """A folder through its own configuration, a file through the architecture that it is.

    What the libraries cannot build stays as its header told it.
    """
    from tightfit.api.parts_source import PartsSource, gauges_of

    if path.is_dir():
        try:
            source = PartsSource.of(str(path))
            return source.weigh(size, card, dtype=dtype, steps=steps)
        except InputError as error:
            said = str(error).rstrip(".")
            return replace(weighed, notes=(*weighed.notes, f"no dry run: {said}"))
    models, notes = gauges_of(weighed.models, size, card, dtype=dtype)
    return replace(weighed, models=models, notes=(*weighed.notes, *notes))


def _mode(mode: str) -> Mode:
    for known in MODES:
        if mode == known:
            return known
    raise UsageError(f"--vram-mode `{mode}` is unknown: use {', '.join(MODES)}.")


def _with_allocator(card: Outlook, asked: str | None) -> Outlook:
    """Another allocator may be planned for than the one that runs."""
    if asked is None:
        return card
    if asked not in ALLOCATORS:
        raise UsageError(f"--allocator `{asked}` is unknown: use {', '.join(ALLOCATORS)}.")
    if card.kind == "cpu":
        raise UsageError("--allocator says how a card's memory is managed; the CPU has none.")
    return replace(card, allocator=asked, scratch=True)
