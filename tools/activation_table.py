"""Makes ``src/tightfit/weigh/activations.json``: dry runs of the true architectures, as lines.

    python tools/activation_table.py            # all of it, about ten minutes on two cores
    python tools/activation_table.py flux-vae   # these rows alone, the others stay

Every row is a stage of an architecture: bytes of new tensors (`dry`), the same with the measured
scratch of CUDA's convolutions (`allocated`), what each allocator reserves for that (`reserved`),
and floating-point operations, as lines over pixels and frames. Nothing here is measured on a card.
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

from tightfit.adapters.architectures import ARCHITECTURES
from tightfit.adapters.calls import call_of
from tightfit.adapters.parts import DENOISE, Part, find_parts, outline_part, stages_of
from tightfit.adapters.pipelines import PIPELINES
from tightfit.adapters.row_names import row_name
from tightfit.adapters.sizes import cast_sizes, grid_of, usual_size, vae_traits
from tightfit.plan.size import Size
from tightfit.plan.slack import replay
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.lines import Line, Point, fit
from tightfit.weigh.workspace import CUDA, peak_of, sequence

TABLE = Path(__file__).parent.parent / "src/tightfit/weigh/activations.json"
ALLOCATORS = ("native", "async", "expandable")
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
        if vae not in seen:
            yield vae, find_parts(f"random:{vae}")[0]


def measure(part: Part, stage: str, dtype: torch.dtype) -> dict[str, Any]:
    """The row of one stage."""
    module = outline_part(part, dtype=dtype)
    temporal = _temporal(part)
    runs: dict[tuple[int, int, int], DryRun] = {}
    for size in _sizes(part, temporal):
        cast = cast_sizes(part, size)
        key = (cast.area, cast.frames, _latent_pixels(cast, temporal))
        if key not in runs:
            runs[key] = dry_run(call_of(part, module, stage, cast, dtype=dtype))
    moves = {key: sequence(run, CUDA) for key, run in runs.items()}
    kinds = {
        kind: {key: replay(move, kind).reserved for key, move in moves.items()}
        for kind in ALLOCATORS
    }
    return {
        "dry": _lines({key: run.peak for key, run in runs.items()}),
        "allocated": _lines({key: peak_of(move) for key, move in moves.items()}),
        "reserved": {kind: _lines(peaks) for kind, peaks in kinds.items()},
        "flops": _square({key[2]: run.flops for key, run in runs.items()}),
        "temporal": temporal,
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


def _latent_pixels(size: Size, temporal: int) -> int:
    return size.area * ((size.frames - 1) // temporal + 1)


def _lines(peaks: dict[tuple[int, int, int], int]) -> list[list[float]]:
    """One line for pictures; a second one where clips need more than it says."""
    points = [Point(area, frames, size) for (area, frames, _), size in peaks.items()]
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


def _square(flops: dict[int, int]) -> list[float]:
    """c0 + c1 x + c2 x² through the smallest, a middle and the largest size."""
    sizes = sorted(flops)
    if len(sizes) < 3:
        return [float(max(flops.values())), 0.0, 0.0]
    x0, x1, x2 = sizes[0], sizes[len(sizes) // 2], sizes[-1]
    y0, y1, y2 = flops[x0], flops[x1], flops[x2]
    first = (y1 - y0) / (x1 - x0)
    second = ((y2 - y1) / (x2 - x1) - first) / (x2 - x0)
    slope = first - second * (x0 + x1)
    fixed = y0 - slope * x0 - second * x0 * x0
    return [float(f"{max(0.0, value):.6g}") for value in (fixed, slope, second)]


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
