"""`tightfit encode`: a picture or a clip to a latent file, or a folder of them to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tightfit.cli import cluster as c
from tightfit.cli import options as o


def encode(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN...", help="Picture, clip, frame folder or sound; or many, as a batch."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="OUT", help="A .safetensors file; of many, a folder."),
    ],
    vae: o.VaeSpec,
    keep_alpha: Annotated[
        bool, typer.Option("--keep-alpha", help="Keep alpha beside the latent.")
    ] = False,
    background: Annotated[
        str, typer.Option("--background", metavar="C", help="Laid under alpha: white, #rrggbb.")
    ] = "white",
    frames: Annotated[
        str | None, typer.Option("--frames", metavar="A:B:S", help="Which frames of a clip.")
    ] = None,
    fps: Annotated[
        str | None, typer.Option("--fps", metavar="X", help="Pick frames by time at this rate.")
    ] = None,
    seconds: Annotated[
        str | None, typer.Option("--seconds", metavar="A:B", help="What is shown from A up to B.")
    ] = None,
    pad: Annotated[
        str,
        typer.Option("--pad", help="repeat the last frame up to a legal length, or trim frames."),
    ] = "repeat",
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="SEED", help="Draw from the posterior, not its mode."),
    ] = None,
    card: o.CardName = None,
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
    shards: c.Shards = None,
    shard_format: c.ShardFormat = None,
    report: o.ReportFile = None,
    trace: o.TraceFile = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Encode a picture or a clip to a latent file, whole if it fits and in tiles if not."""
    from tightfit.cli.allocator import prepare

    prepare(allocator, card)
    from tightfit import api
    from tightfit.api.batches.items import is_batch
    from tightfit.cli import batch, show
    from tightfit.media.files import check_writable
    from tightfit.media.latents import LATENT_KINDS, save_latent

    voice = o.Voice(verbose, quiet, report, trace)
    options: dict[str, Any] = {
        "vram": vram,
        "reserve": reserve_vram,
        "mode": vram_mode,
        "allocator": allocator,
        "tile": tile,
        "overlap": overlap,
        "dtype": dtype,
        "estimate": not no_estimate,
        "allow_cpu": allow_cpu,
        "frames": frames,
        "fps": fps,
        "seconds": seconds,
        "pad": pad,
        "keep_alpha": keep_alpha,
        "background": background,
        "sample": sample,
    }
    many = {
        "--address": address,
        "--cards": cards,
        "--shards": shards,
        "--shard-format": shard_format,
    }
    on_many = c.is_on_many(engine, voice, card=card, options=many)
    with api.pickles_allowed(allow_pickle):
        if on_many:
            from tightfit.cluster.encoding import encode_on_cards

            batch.check_records(voice, out)
            batch.run_batch(
                voice,
                "encode",
                lambda shown: encode_on_cards(
                    sources,
                    out,
                    vae=vae,
                    cards=cards,
                    address=address,
                    shards=shards,
                    shard_format=shard_format,
                    pickles=allow_pickle,
                    tell=shown.tell,
                    finish=shown.finish,
                    **options,
                ),
                bar=c.bar(voice),
            )
            return
        if is_batch(sources, out, folder_is_one=True):
            batch.check_records(voice, out)
            batch.run_batch(
                voice,
                "encode",
                lambda shown: api.encode_all(
                    sources, out, vae=vae, card=card, **shown.told, **options
                ),
            )
            return
        (source,) = sources
        show.check_records(voice, source, out)
        check_writable(out, LATENT_KINDS)
        with show.watched(voice, "encode", out=out) as watching:
            result = api.encode(source, vae=vae, card=card, watching=watching, **options)
            save_latent(out, result.value)
    show.write_report(voice, result.report.with_output(path=str(out)))
    show.tell(voice, result.report)
    shape = "x".join(map(str, result.value.latent.shape))
    show.wrote(voice, out, f"latent {shape} of {result.value.vae}")
