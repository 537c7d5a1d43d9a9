"""`tightfit decode`: a latent file to a picture, a clip, or a folder of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tightfit.cli import options as o
from tightfit.errors import UsageError


def decode(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="LATENT...", help="What encode wrote; or many, as a batch."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="OUT.png|.mp4|.wav|DIR", help="Where frames go.")
    ],
    vae: o.VaeSpec,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Write values that are not finite as black.")
    ] = False,
    bits: Annotated[
        int, typer.Option("--bits", metavar="8|16", help="Of a sample, in PNG, MKV or a folder.")
    ] = 8,
    quality: Annotated[
        int | None, typer.Option("--quality", metavar="1-100", help="Of WebP and JPEG.")
    ] = None,
    sound: Annotated[
        Path | None,
        typer.Option("--sound", metavar="FILE", help="Sound for a clip, from its beginning."),
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
    report: o.ReportFile = None,
    trace: o.TraceFile = None,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> None:
    """Decode a latent file to a picture, a clip, or a folder of frames."""
    from tightfit.cli.allocator import prepare

    prepare(allocator, card)
    from tightfit import api
    from tightfit.api.batches.items import is_batch
    from tightfit.api.writing import Target
    from tightfit.cli import batch, show
    from tightfit.cli.output import check_output, sound_for
    from tightfit.media.outputs import Terms

    voice = o.Voice(verbose, quiet, report, trace)
    terms = Terms(bits, quality)
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
    }
    with api.pickles_allowed(allow_pickle):
        if is_batch(sources, out, folder_is_one=False):
            if sound is not None:
                raise UsageError("--sound is for one clip, and a batch is several: leave it out.")
            batch.check_records(voice, out)
            batch.run_batch(
                voice,
                "decode",
                lambda shown: api.decode_all(
                    sources,
                    out,
                    vae=vae,
                    card=card,
                    aim=lambda to: Target(to, terms, allow_nan=allow_nan),
                    written_as=[bits, quality, allow_nan],
                    **shown.told,
                    **options,
                ),
            )
            return
        (source,) = sources
        show.check_records(voice, source, out)
        check_output(out, source, terms, sound)
        with show.watched(voice, "decode", out=out) as watching:
            heard = sound_for(source, sound)
            target = Target(out, terms, heard, allow_nan)
            done = api.decode(
                source, vae=vae, card=card, out=target, watching=watching, **options
            ).report
    if heard is not None:
        done = done.with_adjusted(*heard.notes)
    show.write_report(voice, done)
    show.tell(voice, done)
    made = done.output
    if "samples" in made:
        show.wrote(voice, out, f"{made['samples'] / made['rate']:.3f} s of sound")
        return
    count, size = made["frames"], f"{made['width']}x{made['height']}"
    show.wrote(voice, out, f"{count} {'frame' if count == 1 else 'frames'} of {size}")
