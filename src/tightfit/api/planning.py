"""`make_plan`: what a job will need on a card, and what goes where, before anything is loaded.

A file is planned from its header alone, without torch. A folder, and ``random:NAME``, are run on
the meta device at the size of the job, which takes seconds and no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.card.host_memory import HostMemory, read_host_memory
from tightfit.card.outlook import Outlook, look
from tightfit.errors import InputError, UsageError
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.plan.plan import Plan, make
from tightfit.plan.residency import MODES, Mode
from tightfit.plan.size import Size
from tightfit.plan.tilesize import TileWish, check_wish, parse_tile
from tightfit.run.planning.demands import demands_of
from tightfit.run.planning.model import ENCODERS, Model, Shaped, cast_size
from tightfit.run.planning.supplies import supply_of
from tightfit.run.planning.weighed import STEPS, in_order, weigh_path
from tightfit.settings import ALLOCATORS

if TYPE_CHECKING:
    from tightfit.run.planning.gauge import Working
    from tightfit.run.planning.weighed import Weighed

DTYPES = ("auto", "float32", "float16", "bfloat16")
USUAL = Size(1024, 1024)
_HOST = "host memory"
_CONFIGURED = ("model_index.json", "config.json")
"""A folder with one of these says how its networks are built."""
_SMALLEST = "the smallest card"


@dataclass(frozen=True)
class Question:
    """Everything that a plan is made from; ask `plan` for other sizes and budgets too.

    Attributes:
        models: the stages of the job, weighed.
        asked: the size of the job, as it was asked for.
        size: likewise, as every model takes it.
        card: on paper.
        amount: of it that may be used.
        mode: where weights live.
        tile: what was asked about tiles.
        host: this machine's memory; None is unknown, or the card itself.
        said: what is not predicted, taken for granted, or read from a table.
    """

    models: tuple[Model, ...]
    asked: Size
    size: Size
    card: Outlook
    amount: Budget
    mode: Mode
    tile: TileWish
    host: HostMemory | None
    said: tuple[str, ...]

    def plan(self) -> Plan:
        """What goes where."""
        demands = demands_of(self.models, self.size, self.card, tile=self.tile)
        plan = make(demands, supply_of(self.card, self.amount, self.host), mode=self.mode)
        if self.card.kind != "cpu":
            return plan
        # There the card is the host, and its memory is in the ledger already.
        return replace(plan, not_predicted=tuple(x for x in plan.not_predicted if x != _HOST))

    def sized(self, size: Size) -> Question:
        """The same for a job of `size`. Raises `UsageError` for one that a model does not take."""
        return replace(self, asked=size, size=cast_size(self.models, size))

    def budgeted(self, budget: int) -> Question:
        """The same on the smallest card of its kind on which `budget` may be used."""
        total = budget + self.card.context + self.amount.reserve
        card = replace(self.card, name=_SMALLEST, product=None, total=total, held_by_others=0)
        return replace(self, card=card, amount=Budget(budget, self.amount.reserve))

    def working(self, model: Model) -> Working:
        """What the largest call of a stage needs beside its weights."""
        told = model.gauge.at(model.whole(self.size), allocator=self.card.allocator)
        # On a bare card what is allocated is the tensors alone, whatever a table says of CUDA.
        return told if self.card.scratch else replace(told, allocated=told.dry)

    def predicts(self, model: Model) -> bool:
        """Whether it is known what `model` needs beside its weights."""
        return self.working(model).dry is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about these figures, a phrase for each."""
        return tuple(dict.fromkeys((*_padded(self.asked, self.size), *self.said)))

    @property
    def heading(self) -> str:
        """What was asked, in one line."""
        names = ", ".join(dict.fromkeys(model.name for model in self.models))
        if all(model.stage in ENCODERS for model in self.models):
            many = self.size.batch
            return f"{names}, {many} prompts at once" if many > 1 else names
        return f"{names} at {self.size}"

    def as_dict(self) -> dict[str, Any]:
        """JSON values: the plan, and what it was made from."""
        return {
            **self.plan().as_dict(),
            "size": asdict(self.size),
            "models": [self._model(model) for model in self.models],
            "notes": list(self.notes),
        }

    def _model(self, model: Model) -> dict[str, Any]:
        needs = self.working(model)
        return {
            "name": model.name,
            "stage": model.stage,
            "dtype": model.dtype,
            "weight_bytes": model.weights.stored_bytes,
            "converted_bytes": model.weights.converted_bytes,
            "blocks": len(model.weights.blocks),
            "order": model.weights.order,
            "dry_bytes": needs.dry,
            "allocated_bytes": needs.allocated,
            "reserved_if_unbounded_bytes": needs.reserved,
            "peak_operator": needs.at,
            "source": None if needs.dry is None else needs.source,
        }


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
        raise UsageError(f"--dtype `{dtype}` is unknown: use {', '.join(DTYPES)}.")
    chosen = _mode(mode)
    wish = BudgetWish.of(vram, reserve)
    tiles = parse_tile(tile, None)
    # What no job can mean is refused before anything is looked at.
    width_, height_, frames_ = (1 if side is None else side for side in (width, height, frames))
    Size(width_, height_, frames_, batch)
    if steps < 1:
        raise UsageError(f"steps `{steps}` is below 1.")
    paper = _card(card, allocator, wish)
    amount = wish.on(paper.name, paper.total)
    asked = None if dtype == "auto" else dtype
    if asked == "bfloat16" and paper.bf16 is False:
        raise UsageError(f"--dtype bfloat16: {paper.name} does not compute in it.")
    specs = [str(one) for one in ([model] if isinstance(model, (str, Path)) else model)]
    if not specs or "" in specs:
        raise UsageError("Name a model to plan: a file, a folder, or random:NAME.")
    sources = [_source(spec, paper, asked, steps, dry_run) for spec in specs]
    shapes = [shape for source in sources for shape in source.shapes]
    usual = _usual(sources)
    size = Size(
        usual.width if width is None else width,
        usual.height if height is None else height,
        usual.frames if frames is None else frames,
        batch,
    )
    job = cast_size(shapes, size)
    for shape in shapes:
        if shape.stage in ("decode", "encode"):
            check_wish(tiles, spatial=shape.steps.side, temporal=shape.steps.frames or 1)
    encodes = all(shape.stage != "denoise" for shape in shapes)
    weighed = [source.weigh(job, encodes) for source in sources]
    said = [] if paper.note is None else [paper.note]
    said += [note for each in weighed for note in each.notes]
    return Question(
        models=in_order(_told_apart(weighed)),
        asked=size,
        size=job,
        card=paper,
        amount=amount,
        mode=chosen,
        tile=tiles,
        host=None if paper.kind == "cpu" else read_host_memory(),
        said=tuple(said),
    )


@dataclass(frozen=True)
class _Source:
    """A model that was found; `weigh` does what takes long.

    Attributes:
        usual: the size that it is usually asked for; None is unknown.
        shapes: its stages, with the sizes that they take.
        weigh: for a job of some size; whether an autoencoder alone is asked to encode, too.
    """

    usual: Size | None
    shapes: Sequence[Shaped]
    weigh: Callable[[Size, bool], Weighed]


def _source(spec: str, card: Outlook, dtype: str | None, steps: int, dry_run: bool) -> _Source:
    """By headers where that is enough, else through the libraries that know the model."""
    path = Path(spec).expanduser()
    if spec.partition(":")[0] in ("random", "mini"):
        return _built(spec, card, dtype, steps)
    if not path.exists():
        raise InputError(
            f"Model `{spec}` is no file or folder here; use random:NAME for the true size of a "
            "known model. One on a hub has to be downloaded first."
        )
    weighed = weigh_path(path, card, dtype=dtype, steps=steps)
    if path.is_dir() and any((path / name).is_file() for name in _CONFIGURED):
        try:
            return _built(spec, card, dtype, steps)
        except InputError as error:
            said = f"no dry run of {spec}: {str(error).rstrip('.')}"
            weighed = replace(weighed, notes=(*weighed.notes, said))
            dry_run = False

    def weigh(size: Size, encodes: bool) -> Weighed:
        models = tuple(one for one in weighed.models if encodes or one.stage != "encode")
        if not dry_run:
            return replace(weighed, models=models)
        from tightfit.api.parts_source import gauges_of

        models, notes = gauges_of(models, size, card)
        return replace(weighed, models=models, notes=(*weighed.notes, *notes))

    return _Source(weighed.usual, weighed.models, weigh)


def _built(spec: str, card: Outlook, dtype: str | None, steps: int) -> _Source:
    """On the meta device, by those who know how."""
    from tightfit.api.parts_source import PartsSource

    parts = PartsSource.of(spec)
    return _Source(
        parts.usual,
        parts.shapes,
        lambda size, encodes: parts.weigh(size, card, dtype=dtype, steps=steps, encodes=encodes),
    )


def _usual(sources: Sequence[_Source]) -> Size:
    """Of what denoises, else of the first that has one."""
    denoise = [s for s in sources if any(shape.stage == "denoise" for shape in s.shapes)]
    return next((s.usual for s in (*denoise, *sources) if s.usual is not None), USUAL)


def _told_apart(weighed: Sequence[Weighed]) -> list[Model]:
    """Every network under a name of its own, since stages of one name share their weights."""
    found: Counter[str] = Counter()
    models: list[Model] = []
    for each in weighed:
        before: Counter[tuple[str, str]] = Counter()
        names: dict[tuple[str, int], str] = {}
        for model in each.models:
            network = (model.name, before[model.name, model.stage])
            before[model.name, model.stage] += 1
            if network not in names:
                found[model.name] += 1
                number = found[model.name]
                names[network] = model.name if number == 1 else f"{model.name} #{number}"
            models.append(replace(model, name=names[network]))
    return models


def _padded(asked: Size, job: Size) -> list[str]:
    notes = []
    if (asked.width, asked.height) != (job.width, job.height):
        notes.append(f"{asked.width}x{asked.height} is padded to {job.width}x{job.height}")
    if asked.frames != job.frames:
        notes.append(f"{asked.frames} frames are padded to {job.frames}")
    return notes


def _card(name: str | None, allocator: str | None, wish: BudgetWish) -> Outlook:
    """As it is, planned for another allocator where one is asked for."""
    bare = wish.share.text if name is None and wish.share and wish.share.size is not None else None
    card = look(name, size=bare)
    if allocator is None:
        return card
    if allocator not in ALLOCATORS:
        raise UsageError(f"--allocator `{allocator}` is unknown: use {', '.join(ALLOCATORS)}.")
    if card.kind == "cpu":
        raise UsageError("--allocator says how a card's memory is managed; the CPU has none.")
    return replace(card, allocator=allocator, scratch=True)


def _mode(mode: str) -> Mode:
    for known in MODES:
        if mode == known:
            return known
    raise UsageError(f"--vram-mode `{mode}` is unknown: use {', '.join(MODES)}.")
