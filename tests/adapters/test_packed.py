"""Packed folders and files, opened wherever a model is: the original's bits, or one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import nn

import tightfit
from tests.adapters.original_vae import original_names
from tests.clips import smooth
from tests.place.packing.files import damage
from tightfit.adapters import (
    find_parts,
    find_vae,
    load_part,
    load_vae,
    outline_part,
    outline_vae,
    stored_dtype,
)
from tightfit.adapters.diffusers_vae import weights_hash
from tightfit.adapters.known.architectures import ARCHITECTURES
from tightfit.errors import InputError
from tightfit.weigh import walk

WEIGHTS = "diffusion_pytorch_model.safetensors"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def save(spec: str, folder: Path, **how: Any) -> Path:
    """The random part of this name in bfloat16, in a folder as its library saves it."""
    (part,) = find_parts(spec)
    module: Any = load_part(part, dtype=torch.bfloat16)
    module.save_pretrained(folder, **how)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small VAE."""
    return save("random:wan2.1-vae-mini", tmp_path_factory.mktemp("vae") / "original")


@pytest.fixture(scope="module")
def packed(original: Path) -> Path:
    """The same, packed."""
    done = tightfit.pack(original, original.parent / "packed")
    assert done.packed > 10
    return done.out


def alike(one: nn.Module, other: nn.Module) -> bool:
    """All tensors, also those that are not stored: the same bits, dtypes and places."""
    ours, theirs = ({held.path: held.tensor for held in walk(each)} for each in (one, other))
    return (
        ours.keys() == theirs.keys()
        and all(ours[path].dtype == theirs[path].dtype for path in ours)
        and all(ours[path].device == theirs[path].device for path in ours)
        and all(torch.equal(ours[path], theirs[path]) for path in ours)
        and one.training == other.training
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "file", "pipeline"])
def test_a_packed_vae_encodes_and_decodes_as_the_original_does(
    kind: str, original: Path, packed: Path, tmp_path: Path
) -> None:
    """Bit for bit, from a folder, a file of its own, and the folder of a pipeline."""
    specs = [original, packed]
    if kind == "file":
        specs = [each / WEIGHTS for each in specs]
    elif kind == "pipeline":
        shutil.copytree(original, tmp_path / "pipeline" / "vae")
        (tmp_path / "pipeline" / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
        tightfit.pack(tmp_path / "pipeline", tmp_path / "out")
        specs = [original, tmp_path / "out"]
    clip = smooth(1, 3, 16, 16)
    latents = [tightfit.encode(clip, vae=str(spec), card="cpu") for spec in specs]
    frames = [
        tightfit.decode(latents[0].value, vae=str(spec), card="cpu").value.pixels for spec in specs
    ]
    assert torch.equal(latents[0].value.latent, latents[1].value.latent)
    assert torch.equal(frames[0], frames[1])
    hashes = {each.report.model["hash"] for each in latents}
    assert len(hashes) == 1
    assert None not in hashes


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_a_packed_vae_is_what_the_loader_makes_of_the_original(
    dtype: torch.dtype | None, original: Path, packed: Path
) -> None:
    """Folder and file: every tensor, in every dtype; the file tells the same of itself."""
    for inside in ("", WEIGHTS):
        one, other = (find_vae(str(each / inside)) for each in (original, packed))
        assert stored_dtype(one) is stored_dtype(other) is torch.bfloat16
        assert one.traits == other.traits
        assert alike(load_vae(one, dtype=dtype).module, load_vae(other, dtype=dtype).module)
        outlined, loaded = outline_vae(other, dtype=dtype), load_vae(other, dtype=dtype)
        assert outlined is not None
        if dtype is not None:
            assert outlined.dtype is loaded.dtype


@pytest.mark.parametrize(
    "name",
    [
        "flux.1-dev-mini/text_encoder_2",
        "qwen-image-mini/text_encoder",
        "wan2.1-t2v-1.3b-mini/transformer",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_part_is_what_its_library_makes_of_the_original(
    name: str, dtype: torch.dtype, parts: dict[str, Path]
) -> None:
    """Both libraries, in shards, with names that are kept in float32, tied and unsaved tensors."""
    folder = parts[name]
    one, other = (find_parts(str(folder / each))[0] for each in ("original", "packed"))
    state = torch.get_rng_state()
    module = load_part(other, dtype=dtype)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() is torch.float32
    assert alike(load_part(one, dtype=dtype), module)
    outlines = (outline_part(part, dtype=dtype) for part in (one, other))
    before, after = ([(h.path, h.tensor.dtype, h.tensor.shape) for h in walk(o)] for o in outlines)
    assert before == after


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with an ``original`` and a ``packed`` part each, one of them in shards."""
    root = tmp_path_factory.mktemp("parts")
    found = {}
    for name, size in (
        ("flux.1-dev-mini/text_encoder_2", "1MB"),
        ("qwen-image-mini/text_encoder", "1GB"),
        ("wan2.1-t2v-1.3b-mini/transformer", "1MB"),
    ):
        found[name] = root / name
        source = save(f"random:{name}", found[name] / "original", max_shard_size=size)
        assert tightfit.pack(source, found[name] / "packed").packed > 0
    return found


@pytest.mark.parametrize("prefix", ["", "first_stage_model."])
def test_a_packed_original_checkpoint_is_converted(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the names of a picture VAE before diffusers; of a bundle, only the VAE is unpacked."""
    narrow = ARCHITECTURES["flux-vae-mini"]
    monkeypatch.setitem(ARCHITECTURES, "flux-vae", narrow)
    with torch.device("meta"):
        names = original_names(AutoencoderKL(**narrow.arguments))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        prefix + name: (torch.randn(shape, generator=generator) * 0.02).bfloat16()
        for name, shape in names.items()
    }
    if prefix:
        tensors["model.diffusion_model.middle.weight"] = torch.randn(128, 128).bfloat16()
    save_file(tensors, tmp_path / "m.safetensors")
    done = tightfit.pack(tmp_path / "m.safetensors", tmp_path / "p.safetensors")
    assert done.packed > 1
    if prefix:  # what is not asked for is not unpacked: its damage is not seen
        damage_tensor(done.out, "model.diffusion_model.middle.weight")
    one, other = (
        load_vae(find_vae(str(tmp_path / name)), dtype=torch.bfloat16)
        for name in ("m.safetensors", "p.safetensors")
    )
    assert alike(one.module, other.module)


def damage_tensor(path: Path, name: str) -> None:
    """Turn a bit of the packed tensor `name`."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    damage(path, 8 + length + (begin + end) // 2)


@pytest.mark.parametrize("kind", ["folder", "file", "part", "text encoder"])
def test_a_damaged_packed_file_is_refused_by_name(
    kind: str, packed: Path, parts: dict[str, Path], tmp_path: Path
) -> None:
    """The file and the tensor, in one sentence."""
    if kind == "text encoder":
        packed = parts["qwen-image-mini/text_encoder"] / "packed"
    folder = tmp_path / "packed"
    shutil.copytree(packed, folder)
    (file,) = folder.glob("*.safetensors")
    name = max(load_file(file).items(), key=lambda item: item[1].nbytes)[0]
    damage_tensor(file, name)

    def load() -> None:
        if kind in ("folder", "file"):
            load_vae(find_vae(str(folder if kind == "folder" else file)))
        else:
            load_part(find_parts(str(folder))[0], dtype=torch.bfloat16)

    with pytest.raises(InputError) as caught:
        load()
    assert str(file) in str(caught.value)
    assert f"`{name}` is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_later_version_is_refused_by_name(packed: Path, tmp_path: Path) -> None:
    """Not taken for bytes that no VAE has."""
    folder = tmp_path / "packed"
    shutil.copytree(packed, folder)
    file = folder / WEIGHTS
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"tightfit.packed":"1"', b'"tightfit.packed":"2"', 1))
    assert file.read_bytes() != data
    for spec in (folder, file):
        with pytest.raises(InputError, match=rf"^VAE `{spec}` .*: {file}: .*version `2`"):
            load_vae(find_vae(str(spec)))


def test_what_does_not_fit_its_configuration_is_refused(packed: Path, tmp_path: Path) -> None:
    """Tensors that are missing or of another shape, by name."""
    for change, words in (({"base_dim": 12}, "of shape"), ({"num_res_blocks": 3}, "has no tensor")):
        folder = tmp_path / words
        shutil.copytree(packed, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match=rf"^Cannot load {folder}: .*{words}.*`?\.$"):
            load_vae(find_vae(str(folder)))


def test_a_packed_quantised_model_is_refused_with_the_way_out(
    packed: Path, parts: dict[str, Path], tmp_path: Path
) -> None:
    """Its library converts while it loads; unpacked, it can."""
    for at, source in enumerate((packed, parts["qwen-image-mini/text_encoder"] / "packed")):
        folder = tmp_path / str(at)
        shutil.copytree(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=f"`tightfit pack --unpack {folder} -o OUT`"):
            load_part(find_parts(str(folder))[0], dtype=torch.bfloat16)


def test_a_plain_file_is_taken_where_a_variant_is_packed(original: Path, tmp_path: Path) -> None:
    """What the loader takes by default decides, not what lies beside it."""
    folder = tmp_path / "vae"
    shutil.copytree(original, folder)
    tightfit.pack(folder / WEIGHTS, folder / "diffusion_pytorch_model.fp16.safetensors")
    source = find_vae(str(folder))
    assert stored_dtype(source) is torch.bfloat16
    before = weights_hash(load_vae(find_vae(str(original))).module)
    assert weights_hash(load_vae(source).module) == before
