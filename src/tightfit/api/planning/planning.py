"""`make_plan`: what a job will need on a card, and what goes where, before anything is loaded.

A file is planned from its header alone, without torch. A folder, and ``random:NAME``, are run on
the meta device at the size of the job, which takes seconds and no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tightfit.api.planning.model_sources import find_model, told_apart, usual_size
from tightfit.api.planning.question import Question
from tightfit.card.host_memory import read_host_memory
from tightfit.card.outlook import Outlook, look
from tightfit.errors import UsageError
from tightfit.plan.budget import BudgetWish
from tightfit.plan.plan import Plan
from tightfit.plan.size import Size
from tightfit.plan.streaming.residency import MODES, Mode
from tightfit.plan.tilesize import check_wish, parse_tile
from tightfit.run.planning.model import cast_size
from tightfit.run.planning.weighed import STEPS, in_order
from tightfit.settings import ALLOCATORS

DTYPES = ("auto", "float32", "float16", "bfloat16")


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
    sources = [find_model(spec, paper, dtype=asked, steps=steps, dry_run=dry_run) for spec in specs]
    shapes = [shape for source in sources for shape in source.shapes]
    usual = usual_size(sources)
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
    weighed = [source.weigh(job, encodes=encodes) for source in sources]
    said = [] if paper.note is None else [paper.note]
    said += [note for each in weighed for note in each.notes]
    return Question(
        models=in_order(told_apart(weighed)),
        asked=size,
        size=job,
        card=paper,
        amount=amount,
        mode=chosen,
        tile=tiles,
        host=None if paper.kind == "cpu" else read_host_memory(),
        said=tuple(said),
    )


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
