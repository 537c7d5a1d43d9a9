"""Models weighed by their headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.model_files import SHAPES, broken_files, gguf_file, model_file, sharded
from tests.weigh.header_makers import write_safetensors
from tightfit.card.outlook import Outlook, look
from tightfit.errors import InputError
from tightfit.plan.size import Size
from tightfit.run.planning.gauge import NoGauge, TableGauge
from tightfit.run.planning.steps import ANY, Steps
from tightfit.run.planning.weighed import cast_notes, compute_dtype, is_pipeline, weigh_path
from tightfit.units import GIB, MIB

CARD = look("virtual:rtx-3060")
OLD = look("virtual:gtx-1660")
CPU = look("cpu")


def test_a_denoiser_alone_is_one_stage(tmp_path: Path) -> None:
    """Its name, its weight, its usual size, and every step."""
    weighed = weigh_path(model_file(tmp_path, "flux"), CARD, steps=7)
    (model,) = weighed.models
    assert (model.name, model.stage, model.calls) == ("flux.1-dev/transformer", "denoise", 7)
    assert model.weights.stored_bytes == 2 * 11_901_408_320
    assert model.steps == Steps(16, None)
    assert isinstance(model.gauge, TableGauge)
    assert (weighed.usual, weighed.notes) == (Size(1024, 1024), ())


def test_networks_with_a_negative_prompt_of_its_own_run_twice_a_step(tmp_path: Path) -> None:
    """As the pipelines of Wan do."""
    (model,) = weigh_path(model_file(tmp_path, "wan1.3"), CARD, steps=7).models
    assert model.calls == 14


def test_an_autoencoder_alone_is_asked_about_both_ways(tmp_path: Path) -> None:
    """In the order of a job; its weights are one network's."""
    models = weigh_path(model_file(tmp_path, "flux-vae"), CARD).models
    assert [(model.name, model.stage) for model in models] == [
        ("flux-vae", "encode"),
        ("flux-vae", "decode"),
    ]
    assert all(model.tiles for model in models)


def test_a_bundle_gives_a_stage_for_each_model_in_it(tmp_path: Path) -> None:
    """SDXL in one file: two text encoders, the denoiser, and a VAE that decodes."""
    weighed = weigh_path(model_file(tmp_path, "sdxl", "F16"), CARD)
    assert [(model.stage, model.name) for model in weighed.models] == [
        ("encode text", "clip-l"),
        ("encode text", "openclip-bigg"),
        ("denoise", "sdxl/unet"),
        ("decode", "sdxl-vae"),
    ]
    whole = sum(model.weights.stored_bytes for model in weighed.models)
    assert whole == pytest.approx(6.46 * GIB, rel=0.01)
    assert weighed.usual == Size(1024, 1024)


def test_shards_and_their_index_are_the_model_that_a_file_is(tmp_path: Path) -> None:
    """By the folder, and by the index in it."""
    (whole,) = weigh_path(model_file(tmp_path, "flux"), CARD).models
    folder = sharded(tmp_path / "shards", "flux")
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    for path in (folder, index):
        (model,) = weigh_path(path, CARD).models
        assert model.name == whole.name
        assert model.weights.blocks == whole.weights.blocks


def test_packed_weights_have_their_stored_bytes_and_a_copy(tmp_path: Path) -> None:
    """GGUF: a quarter of the bytes, and the largest module's copy in the compute dtype."""
    weighed = weigh_path(gguf_file(tmp_path, "flux"), CARD)
    (model,) = weighed.models
    assert (model.name, model.dtype) == ("flux.1-dev/transformer", "bfloat16")
    assert model.weights.stored_bytes < 7 * GIB
    assert 126 * MIB <= model.weights.converted_bytes < 127 * MIB
    assert weighed.notes == ("flux.1-dev/transformer is stored as Q4_K and computes in bfloat16",)


def test_an_unknown_architecture_falls_back_to_blocks_by_its_names(tmp_path: Path) -> None:
    """And what is not predicted is said."""
    weighed = weigh_path(model_file(tmp_path, "unknown"), CARD)
    (model,) = weighed.models
    assert (model.name, model.stage, model.steps) == ("unknown", "run", ANY)
    assert [block.name for block in model.weights.blocks] == ["blocks.0", "blocks.1", "head"]
    assert isinstance(model.gauge, NoGauge)
    assert "activations of unknown are not predicted" in weighed.notes[0]
    assert weighed.usual is None


def pipeline(folder: Path) -> Path:
    """A pipeline's folder with a denoiser that is unknown and one that is known."""
    folder.mkdir()
    index = {
        "_class_name": "SomePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "transformer": ["diffusers", "SomeTransformer2DModel"],
        "transformer_2": ["diffusers", "FluxTransformer2DModel"],
        "adapter": ["diffusers", "SomeAdapter"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    for part, name in (
        ("transformer", "unknown"),
        ("transformer_2", "flux"),
        ("adapter", "unknown"),
    ):
        (folder / part).mkdir()
        config = {"_class_name": index[part][1]}
        (folder / part / "config.json").write_text(json.dumps(config))
        tensors = {key: ("BF16", shape) for key, shape in SHAPES[name]().items()}
        write_safetensors(folder / part / "diffusion_pytorch_model.safetensors", tensors)
    return folder


def test_a_pipelines_folder_gives_its_parts_by_name(tmp_path: Path) -> None:
    """One that is not known is called as its folder is, and staged by its class."""
    folder = pipeline(tmp_path / "mine")
    assert is_pipeline(folder)
    assert not is_pipeline(tmp_path)
    models = weigh_path(folder, CARD).models
    assert [(model.stage, model.name) for model in models] == [
        ("denoise", "mine/transformer"),
        ("denoise", "flux.1-dev/transformer"),
        ("run", "mine/adapter"),
    ]


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Text, pickles, files that are cut or damaged, empty ones, folders of nothing."""
    for path, words in broken_files(tmp_path):
        if path.name == "absent.safetensors":
            words = "no such file"
        with pytest.raises(InputError) as refused:
            weigh_path(path, CARD)
        assert words in str(refused.value), path
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("stored", "card", "coder", "upcast", "dtype"),
    [
        ("BF16", CARD, False, False, "bfloat16"),
        ("F16", CARD, False, False, "float16"),
        ("F32", CARD, False, False, "float32"),
        ("F8_E4M3", CARD, False, False, "bfloat16"),
        ("Q4_K", CARD, False, False, "bfloat16"),
        (None, CARD, False, False, "bfloat16"),
        ("BF16", OLD, False, False, "float16"),
        ("F8_E4M3", OLD, False, False, "float16"),
        ("BF16", CARD, True, True, "bfloat16"),
        ("F16", CARD, True, False, "float16"),
        ("F16", CARD, True, True, "float32"),
        ("BF16", OLD, True, False, "float32"),
        ("BF16", CPU, True, False, "float32"),
        ("BF16", CPU, False, False, "bfloat16"),
    ],
)
def test_weights_compute_in_what_they_would_be_run_in(
    stored: str | None, card: Outlook, *, coder: bool, upcast: bool, dtype: str
) -> None:
    """As stored; packed ones in bfloat16; autoencoders as `encode` and `decode` choose."""
    assert compute_dtype(stored, card, coder=coder, upcast=upcast) == dtype


def test_a_vae_that_overflows_in_float16_is_planned_in_float32(tmp_path: Path) -> None:
    """Twice the activations, which is what people meet; and the reason is said."""
    weighed = weigh_path(model_file(tmp_path, "sdxl", "F16"), CARD)
    vae = weighed.models[-1]
    assert vae.dtype == "float32"
    assert weighed.notes == (
        "sdxl-vae is stored as F16 and computes in float32, since it overflows in float16",
    )
    half = weigh_path(model_file(tmp_path, "sdxl", "F16"), CARD, dtype="float16").models[-1]
    sizes = [m.gauge.at(Size(1024, 1024), allocator="exact").dry for m in (half, vae)]
    assert sizes[0] is not None
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.02)


def test_a_card_without_bfloat16_is_named_as_the_reason() -> None:
    """And nothing is said where nothing changes."""
    assert cast_notes("x", "BF16", "bfloat16", CARD) == []
    assert cast_notes("x", "BF16", "float16", OLD) == [
        "x is stored as BF16 and computes in float16, since virtual:gtx-1660 has no bfloat16"
    ]
    assert cast_notes("x", "F32", "bfloat16", CARD) == [
        "x is stored as F32 and computes in bfloat16"
    ]
