"""Models weighed by their headers alone: no torch, no weights read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tightfit.plan.size import Size
from tightfit.run.planning.demands import Model
from tightfit.run.planning.gauge import Gauge, NoGauge, TableGauge
from tightfit.weigh.header_blocks import blocks_of_header
from tightfit.weigh.headers import component_folders, read_header
from tightfit.weigh.parts import parts_of_header
from tightfit.weigh.recognise import recognise
from tightfit.weigh.table import needs_of, usual_of
from tightfit.weigh.tensor_header import Header

STEPS = 28
"""Steps of a denoiser where nothing else is said; they change no figure of memory."""
FLOATING = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_STAGES = {"transformer": "denoise", "unet": "denoise", "vae": "decode"}
_ORDER = ("encode text", "encode image", "encode", "denoise", "decode", "run")
_TWICE = ("WanTransformer3DModel", "QwenImageTransformer2DModel")
_PIPELINE = "model_index.json"


@dataclass(frozen=True)
class Weighed:
    """What a path holds.

    Attributes:
        models: in the order of a job's stages.
        notes: what is not predicted and why, and what was taken for granted.
        usual: the size that it is usually asked for; None is unknown.
    """

    models: tuple[Model, ...]
    notes: tuple[str, ...]
    usual: Size | None = None


def is_pipeline(path: Path) -> bool:
    """Whether `path` is the folder of a whole pipeline."""
    return (path / _PIPELINE).is_file()


def weigh_path(path: Path, *, dtype: str | None, bf16: bool | None, steps: int = STEPS) -> Weighed:
    """The models that `path` holds, by headers: a file, a model's folder, or a pipeline's.

    Args:
        dtype: to compute in; None is as stored, bfloat16 for what is stored in less.
        bf16: whether the card computes in bfloat16; where not, float16 is taken for it.
        steps: of a denoiser.

    Raises `InputError` for what cannot be read.
    """
    models: list[Model] = []
    notes: list[str] = []
    for part, header in _headers(path):
        chosen = dtype or compute_dtype(header.dtype, bf16=bf16)
        known = recognise(header)
        stage = _stage(known.part if known else part, header)
        weights = blocks_of_header(header, chosen)
        name = known.name if known else f"{path.name}/{part}" if part else weights.name
        gauge = _gauge(known.name if known else None, stage, chosen)
        if isinstance(gauge, NoGauge):
            what = "its architecture is not known" if known is None else f"no row for {chosen}"
            notes.append(f"activations of {name}: {what}; blocks are by the names of its tensors")
        packed = any(tensor.converted(chosen) for tensor in header.tensors)
        if packed:
            notes.append(f"{name} is stored as {header.dtype} and computes in {chosen}")
        twice = 2 if stage == "denoise" and known and known.class_name in _TWICE else 1
        models.append(
            Model(
                name,
                stage,
                weights,
                gauge,
                calls=steps * twice if stage == "denoise" else 1,
                tiles=stage in ("decode", "encode"),
                mapped=True,
            )
        )
    return Weighed(in_order(models), tuple(notes), _usual(models))


def in_order(models: Iterable[Model]) -> tuple[Model, ...]:
    """As a job goes through its stages."""
    return tuple(sorted(models, key=lambda model: _ORDER.index(model.stage)))


def _usual(models: Iterable[Model]) -> Size | None:
    """Of the denoiser, else of the first model that has a usual size."""
    found = [
        (model.stage != "denoise", usual)
        for model in models
        if (usual := usual_of(model.name)) is not None and not model.stage.startswith("encode ")
    ]
    if not found:
        return None
    width, height, frames = min(found, key=lambda each: each[0])[1]
    return Size(width, height, frames)


def compute_dtype(stored: str | None, *, bf16: bool | None) -> str:
    """What weights compute in: as stored, or bfloat16 for packed ones; by the names of torch."""
    dtype = FLOATING.get(stored or "", "bfloat16")
    return "float16" if dtype == "bfloat16" and bf16 is False else dtype


def _headers(path: Path) -> Iterator[tuple[str, Header]]:
    """Each model's own header, with the name of its part; empty for a model alone."""
    if is_pipeline(path):
        for part, folder in component_folders(path).items():
            yield part, read_header(folder)
        return
    header = read_header(path)
    parts = parts_of_header(header)
    for part, found in parts.items():
        if part != "rest":
            yield part if len(parts) > 1 else "", found


def _stage(part: str, header: Header) -> str:
    """The stage that a part is for; a model of an unknown kind just runs."""
    if part in _STAGES:
        return _STAGES[part]
    if part.startswith("text_encoder"):
        return "encode text"
    if part.startswith("image_encoder"):
        return "encode image"
    name = header.class_name or ""
    if name.startswith("Autoencoder"):
        return "decode"
    return "denoise" if "Transformer" in name and "Model" in name else "run"


def _gauge(name: str | None, stage: str, dtype: str) -> Gauge:
    needs = needs_of(name, stage, dtype) if name is not None else None
    return NoGauge() if needs is None else TableGauge(needs)
