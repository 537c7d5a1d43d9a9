"""`tightfit generate`: prompts to pictures and clips, by a whole pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightfit.cli import cluster as c
from tightfit.cli import options as o
from tightfit.errors import Cancelled, JobFailed, UsageError

if TYPE_CHECKING:
    from tightfit.api import Generated, Result
    from tightfit.report.record import Report

_PARTS = "Parts"


def generate(
    pipeline: Annotated[
        str,
        typer.Argument(metavar="PIPELINE", help="random:NAME, a folder, a file or a hub id."),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="OUT.png|.mp4|.gif|DIR", help="Where it goes."),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What to show.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="One prompt a line: OUT-0001 and so on."),
    ] = None,
    negative: Annotated[
        str | None, typer.Option("--negative", metavar="TEXT", help="What not to show.")
    ] = None,
    width: Annotated[int | None, typer.Option("--width", metavar="W", help="In pixels.")] = None,
    height: Annotated[int | None, typer.Option("--height", metavar="H", help="In pixels.")] = None,
    frames: Annotated[int | None, typer.Option("--frames", metavar="N", help="Of a clip.")] = None,
    fps: Annotated[
        str | None, typer.Option("--fps", metavar="X", help="Frames per second of a clip.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="Of denoising.")] = None,
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", metavar="G", help="How strongly the prompt counts."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="S", help="Default: a new one, which is said.")
    ] = None,
    num: Annotated[
        int, typer.Option("--num", metavar="N", help="How many: seeds S, S+1, … to OUT-1, OUT-2, …")
    ] = 1,
    image: Annotated[
        Path | None, typer.Option("--image", metavar="FILE", help="A picture to start from.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option("--mask", metavar="FILE", help="White is where --image is painted anew."),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option("--strength", metavar="X", help="How much of --image is new: 0 to 1."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="NAME", help="euler, unipc, dpm++ … or its class."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option("--lora", metavar="FILE:X", help="A LoRA with its strength; repeatable."),
    ] = None,
    transformer: Annotated[
        Path | None,
        typer.Option(
            "--transformer", metavar="FILE", help="The denoiser's own.", rich_help_panel=_PARTS
        ),
    ] = None,
    vae: Annotated[
        Path | None,
        typer.Option("--vae", metavar="FILE", help="The VAE's own.", rich_help_panel=_PARTS),
    ] = None,
    text_encoder: Annotated[
        Path | None,
        typer.Option(
            "--text-encoder",
            metavar="FILE",
            help="The first text encoder's own.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="SPEC",
            help="Where the rest comes from, if PIPELINE is one file.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="bf16|fp8",
            help="What weights become while they are loaded.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    latents: Annotated[
        Path | None,
        typer.Option("--latents", metavar="FILE", help="Keep the latents, for decode."),
    ] = None,
    preview: Annotated[
        Path | None,
        typer.Option("--preview", metavar="FILE.png", help="A small picture of how far it is."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a job that was interrupted.")
    ] = False,
    card: o.CardNames = None,
    vram: o.Vram = None,
    reserve_vram: o.ReserveVram = None,
    vram_mode: o.VramMode = "auto",
    allocator: o.Allocator = None,
    dtype: o.Dtype = "auto",
    tile: o.TileSize = "auto",
    overlap: o.Overlap = None,
    no_estimate: o.NoEstimate = False,
    allow_cpu: o.AllowCpu = False,
    allow_pickle: o.AllowPickle = False,
    engine: c.Engine = "local",
    address: c.Address = None,
    cards: c.Cards = None,
    report: o.ReportFile = None,
    trace: o.TraceFile = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Make pictures or clips from prompts by a whole pipeline, on the memory there is."""
    if (prompt is None) == (prompts is None):
        raise UsageError("Give --prompt TEXT, or --prompts FILE with one a line.")
    voice = o.Voice(verbose, quiet, report, trace)
    many = {"--address": address, "--cards": cards}
    on_many = c.is_on_many(engine, voice, card=card, options=many)
    if on_many and prompts is None:
        raise UsageError("--engine ray shares prompts among cards: give them with --prompts FILE.")
    from tightfit.cli.allocator import prepare

    prepare(allocator, card)
    from tightfit import api
    from tightfit.adapters.live.loras import parse_lora
    from tightfit.adapters.live.variants import in_silence
    from tightfit.api.generation.prompting import read_prompts
    from tightfit.cli import show

    show.check_records(voice, Path(pipeline), out)
    named = {"transformer": transformer, "vae": vae, "text_encoder": text_encoder}
    allowed = api.pickles_allowed(allow_pickle)
    options: dict[str, Any] = {
        "negative": negative,
        "width": width,
        "height": height,
        "frames": frames,
        "fps": fps,
        "steps": steps,
        "guidance": guidance,
        "seed": seed,
        "num": num,
        "image": image,
        "mask": mask,
        "strength": strength,
        "scheduler": scheduler,
        "loras": [parse_lora(text) for text in lora or ()],
        "parts": {name: path for name, path in named.items() if path is not None},
        "base": base,
        "weights": weights,
        "dtype": dtype,
        "vram": vram,
        "reserve": reserve_vram,
        "mode": vram_mode,
        "allocator": allocator,
        "latents": latents,
        "preview": preview,
        "resume": resume,
        "tile": tile,
        "overlap": overlap,
        "allow_cpu": allow_cpu,
        "estimate": not no_estimate,
    }
    if on_many and prompts is not None:
        from tightfit.cli.generate_many import generate_many

        with in_silence(), allowed:
            generate_many(
                voice,
                pipeline,
                prompts,
                out=out,
                address=address,
                cards=cards,
                pickles=allow_pickle,
                **options,
            )
        return
    with show.watched(voice, "generate", out=out) as watching, in_silence(), allowed:
        try:
            result = api.generate(
                pipeline,
                prompt=prompt or "" if prompts is None else read_prompts(prompts),
                out=out,
                card=card,
                watching=watching,
                **options,
            )
        except KeyboardInterrupt as interrupt:  # typer would drop the note of what is kept
            raise Cancelled("The job was cancelled.") from interrupt
    _tell(voice, result)


def _tell(voice: o.Voice, result: Result[tuple[Generated, ...]]) -> None:
    """A line for each picture; those that failed are errors, and the job is one then."""
    from tightfit.cli import show

    done = result.report
    show.write_report(voice, done)
    show.tell(voice, replace(done, command="decode"))
    for each in result.value:
        if each.error is not None:
            show.complain(
                JobFailed(f"`{each.prompt}`: {each.error}" if each.prompt else each.error)
            )
        elif each.path is not None:
            show.wrote(voice, each.path, what_was_made(each.settings, each.seed, done))
    bad = sum(each.error is not None for each in result.value)
    if bad:
        raise JobFailed(f"{bad} of {len(result.value)} failed; the others are written.")


def what_was_made(settings: Mapping[str, str], seed: int, done: Report) -> str:
    """One picture or clip, for people: its size, its seed, and how long a step took."""
    size, count = settings["size"], settings.get("frames")
    what = size if count is None else f"{count} frames of {size}"
    return f"{what}, seed {seed}{_speed(done)}"


def _speed(done: Report) -> str:
    """How long a step took, and what it takes at least; a simulated card has no time of its own."""
    for each in done.stages:
        seconds, limit = each.get("seconds_per_step"), each.get("limit_seconds")
        if seconds is not None:
            timed = limit is not None and done.card["kind"] != "virtual"
            beside = f" (limit {limit:.3g})" if timed else ""
            return f", {seconds:.3g} s a step{beside}"
    return ""
