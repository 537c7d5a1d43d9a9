"""Makes ``src/tightfit/weigh/activations.json``: dry runs of the true architectures, as lines.

    python tools/activation_table.py            # all of it, about ten minutes on two cores
    python tools/activation_table.py flux-vae   # these rows alone, the others stay

Every row is a stage of an architecture: bytes of new tensors (`dry`), the same with the measured
scratch of CUDA's convolutions (`allocated`), what each allocator reserves for that (`reserved`),
the least limit that it gets by with (`least`), and floating-point operations, as lines over pixels
and frames. Nothing here is measured on a card.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tightfit.adapters.known.architectures import ARCHITECTURES
from tightfit.adapters.known.calls import call_of
from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.known.row_names import row_name
from tightfit.adapters.known.sizes import cast_sizes, grid_of, usual_size, vae_traits
from tightfit.adapters.parts import DENOISE, Part, find_parts, outline_part, stages_of
from tightfit.plan.size import Size
from tightfit.plan.slack import FRAGMENTS, least_reserved, replay
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.lines import Line, Point, fit, nearest
from tightfit.weigh.workspace import CUDA, peak_of, sequence

TABLE = Path(__file__).parent.parent / "src/tightfit/weigh/activations.json"
PICTURES = (256, 512, 1024, 1536, 2048)
CLIPS = ((256, 256), (512, 512), (832, 480))
FRAMES = (9, 17, 49, 81)


def rows() -> Iterator[tuple[str, Part]]:
    """(name that `weigh.recognise` uses, part), each architecture once."""
    seen = set()
    for pipeline in PIPELINES:
        if pipeline.endswith("-mini"):
            continue
        for part in find_parts(f"random:{pipeline}"):
            name = row_name(part)
            if name is not None and name not in seen:
                seen.add(name)
                yield name, part
    for vae in ARCHITECTURES:
        if vae not in seen and not vae.endswith("-mini"):
            yield vae, find_parts(f"random:{vae}")[0]


def measure(part: Part, stage: str, dtype: torch.dtype) -> dict[str, Any]:
    """The row of one stage."""
    module = outline_part(part, dtype=dtype)
    temporal = _temporal(part)
    runs: dict[tuple[int, int], DryRun] = {}
    for size in _sizes(part, temporal):
        cast = cast_sizes(part, size)
        if (cast.area, cast.frames) not in runs:
            call = call_of(part, module, stage, cast, dtype=dtype)
            runs[cast.area, cast.frames] = dry_run(call)
    moves = {key: sequence(run, CUDA) for key, run in runs.items()}
    reserved = {
        k: {key: replay(move, k).reserved for key, move in moves.items()} for k in FRAGMENTS
    }
    least = {k: {key: least_reserved(move, k) for key, move in moves.items()} for k in FRAGMENTS}
    return {
        "dry": _lines({key: run.peak for key, run in runs.items()}),
        "allocated": _lines({key: peak_of(move) for key, move in moves.items()}),
        "reserved": {kind: _lines(peaks) for kind, peaks in reserved.items()},
        "least": {kind: _lines(peaks) for kind, peaks in least.items()},
        "flops": _flops({key: run.flops for key, run in runs.items()}),
    }


def _sizes(part: Part, temporal: int) -> Iterator[Size]:
    if part.stage.startswith("encode"):
        yield Size(1024, 1024)
        return
    for side in PICTURES:
        yield Size(side, side)
    yield Size(1536, 640)
    if temporal > 1:
        for frames in FRAMES:
            for width, height in CLIPS:
                yield Size(width, height, frames=frames)


def _temporal(part: Part) -> int:
    """Frames per latent frame; 1 for pictures."""
    if part.stage == DENOISE:
        return grid_of(part).temporal or 1
    if part.stage == "decode":
        return vae_traits(part).temporal
    return 1


def _lines(peaks: dict[tuple[int, int], int]) -> list[list[float]]:
    """One line for pictures; a second one where clips need more than it says."""
    points = [Point(area, frames, size) for (area, frames), size in peaks.items()]
    still = [point for point in points if point.frames == 1]
    moving = [point for point in points if point.frames > 1]
    lines = [fit(still)] if still else []
    if moving:
        lines.append(fit(moving, frames=2))
    return [_numbers(line) for line in lines]


def _numbers(line: Line) -> list[float]:
    return [
        line.frames,
        round(line.fixed),
        float(f"{line.area:.6g}"),
        float(f"{line.samples:.6g}"),
    ]


def _flops(flops: dict[tuple[int, int], int]) -> list[float]:
    """Factors of 1, pixels, pixels × frames, and the square of that, which attention takes."""
    rows = [(1.0, a, a * f, float(a * f) ** 2) for a, f in flops]
    return [float(f"{factor:.6g}") for factor in nearest(rows, list(flops.values()))]


def _text(table: dict[str, Any]) -> str:
    """JSON with one line for each architecture, so that a change shows which."""
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table["rows"].items()
    )
    head = json.dumps({key: value for key, value in table.items() if key != "rows"}, indent=1)
    return f'{head.removesuffix("}").rstrip()},\n "rows": {{\n{rows}\n }}\n}}\n'


def main() -> None:
    """Make the rows that were asked for, and write the table whole after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows to make; none makes all")
    asked = parser.parse_args().names
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"rows": {}}
    for name, part in rows():
        if asked and name not in asked:
            continue
        start = time.perf_counter()
        usual = usual_size(part)
        row: dict[str, Any] = {"usual": [usual.width, usual.height, usual.frames]}
        for stage in stages_of(part):
            dtypes = [torch.bfloat16]
            if part.stage == "decode":
                dtypes.append(torch.float32)
            row[stage] = {
                str(dtype).removeprefix("torch."): measure(part, stage, dtype) for dtype in dtypes
            }
        table["rows"][name] = row
        table = {
            "what": "bytes and flops as lines over pixels and frames, from dry runs; see tools",
            "versions": {
                "torch": torch.__version__,
                "diffusers": diffusers.__version__,
                "transformers": transformers.__version__,
            },
            "rows": dict(sorted(table["rows"].items())),
        }
        TABLE.write_text(_text(table), encoding="utf-8")
        print(f"{name}: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
