"""Models weighed by their headers alone: no torch, no weights read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tightfit.card.outlook import Outlook
from tightfit.errors import InputError
from tightfit.plan.size import Size
from tightfit.run.planning.gauge import Gauge, NoGauge, TableGauge
from tightfit.run.planning.model import Model
from tightfit.run.planning.steps import ANY, Steps, steps_of
from tightfit.weigh.files.header_blocks import blocks_of_header
from tightfit.weigh.files.headers import component_folders, read_header
from tightfit.weigh.files.naming import Known
from tightfit.weigh.files.parts import parts_of_header
from tightfit.weigh.files.recognise import recognise
from tightfit.weigh.files.tensor_header import Header
from tightfit.weigh.table import needs_of, usual_of

STEPS = 28
"""Steps of a denoiser where nothing else is said; they change no figure of memory."""
FLOATING = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_STAGES = {"transformer": "denoise", "unet": "denoise", "vae": "decode"}
_ORDER = ("encode text", "encode image", "encode", "denoise", "decode", "run")
_TWICE = ("WanTransformer3DModel", "QwenImageTransformer2DModel")
"""Classes whose pipelines run prompt and negative prompt one after the other."""
_UPCAST = ("sdxl-vae", "flux-vae")
"""Whose configurations say that float16 overflows."""
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


def weigh_path(
    path: Path, card: Outlook, *, dtype: str | None = None, steps: int = STEPS
) -> Weighed:
    """The models that `path` holds, by headers: a file, a model's folder, or a pipeline's.

    Args:
        card: on paper: what it computes in.
        dtype: to compute in; None is as stored, bfloat16 for what is stored in less.
        steps: of a denoiser.

    Raises `InputError` for what cannot be read, or holds no tensor.
    """
    models: list[Model] = []
    notes: list[str] = []
    found = list(_headers(path))
    for part, header in found:
        known = recognise(header)
        stage = _stage(known.part if known else part, header)
        chosen = dtype or compute_dtype(
            header.dtype,
            card,
            coder=stage == "decode",
            upcast=bool(known and known.name in _UPCAST),
        )
        weights = blocks_of_header(header, chosen)
        name = known.name if known else f"{path.resolve().name}/{part}" if part else weights.name
        notes += cast_notes(name, header.dtype, chosen, card)
        # A VAE of a pipeline decodes; one that stands alone is asked about both.
        for each in ("encode", "decode") if stage == "decode" and len(found) == 1 else (stage,):
            models.append(
                Model(
                    name,
                    each,
                    weights,
                    _gauge(known, each, chosen),
                    calls=steps * passes(known.class_name if known else None)
                    if each == "denoise"
                    else 1,
                    tiles=stage == "decode",
                    mapped=True,
                    dtype=chosen,
                    steps=_steps(known),
                )
            )
        if isinstance(models[-1].gauge, NoGauge):
            notes.append(_unknown(name, known, chosen))
    if not models:
        raise InputError(f"Cannot plan {path}: it holds no tensors of a model.")
    return Weighed(in_order(models), tuple(notes), _usual(models))


def _steps(known: Known | None) -> Steps:
    return ANY if known is None else steps_of(known.name, known.class_name)


def passes(class_name: str | None) -> int:
    """Calls of a denoiser of this class in one step; 1 for one that is not known."""
    return 2 if class_name in _TWICE else 1


def _unknown(name: str, known: Known | None, dtype: str) -> str:
    if known is not None:
        return f"activations of {name} are not predicted: the table has none in {dtype}"
    return (
        f"activations of {name} are not predicted: its architecture is not known, and its blocks "
        "are told by the names of its tensors"
    )


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


def compute_dtype(
    stored: str | None, card: Outlook, *, coder: bool = False, upcast: bool = False
) -> str:
    """What weights compute in: as stored, or bfloat16 for packed ones; by the names of torch.

    Args:
        stored: by the names of files.
        card: where it does not compute in bfloat16, float16 is taken for it.
        coder: an autoencoder, which `encode` and `decode` run in float32 where the card has no
            bfloat16, or is none.
        upcast: an autoencoder that overflows in float16.
    """
    dtype = FLOATING.get(stored or "", "bfloat16")
    if coder and dtype != "float32":
        lacks = dtype == "bfloat16" and card.bf16 is False
        if lacks or card.kind == "cpu" or (dtype == "float16" and upcast):
            return "float32"
    return "float16" if dtype == "bfloat16" and card.bf16 is False else dtype


def cast_notes(name: str, stored: str | None, dtype: str, card: Outlook) -> list[str]:
    """What to say where a network does not compute in what it is stored in."""
    kept = FLOATING.get(stored or "")
    if kept == dtype:
        return []
    why = ""
    if kept == "bfloat16" and card.bf16 is False:
        why = f", since {card.name} has no bfloat16"
    elif kept == "float16" and dtype == "float32" and card.kind != "cpu":
        why = ", since it overflows in float16"
    return [f"{name} is stored as {stored} and computes in {dtype}{why}"]


def _headers(path: Path) -> Iterator[tuple[str, Header]]:
    """Each model's own header, with the name of its part; empty for a model alone."""
    if is_pipeline(path):
        for part, folder in component_folders(path).items():
            yield part, read_header(folder)
        return
    header = read_header(path)
    if not header.tensors:
        return
    parts = parts_of_header(header)
    alone = len(parts) == 1
    for part, found in parts.items():
        if alone or part != "rest":
            yield "" if alone else part, found


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


def _gauge(known: Known | None, stage: str, dtype: str) -> Gauge:
    needs = needs_of(known.name, stage, dtype) if known is not None else None
    return NoGauge() if needs is None else TableGauge(needs)
