"""Parts of a pipeline from files and folders of their own: the file's bits, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

import tightfit
from tests.adapters.original_vae import original_names
from tightfit.adapters import find_parts, load_part
from tightfit.adapters.loading.whole import find_pipeline, load_pipeline
from tightfit.errors import InputError, UsageError

BASE = "random:flux.1-dev-mini"
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The networks of a small FLUX in folders, with other numbers than the base's."""
    folder = tmp_path_factory.mktemp("replaced")
    for part in find_parts(BASE):
        module: Any = load_part(part, dtype=torch.float32)
        for value in module.state_dict().values():
            value.mul_(0.5)
        module.save_pretrained(folder / part.name)
    return folder


def stored(path: Path) -> dict[str, torch.Tensor]:
    """What the folder of a part holds."""
    (file,) = path.glob("*.safetensors")
    found: dict[str, torch.Tensor] = load_file(file)
    return found


def has(module: Any, wanted: dict[str, torch.Tensor]) -> bool:
    """The weights of a module are these."""
    own = module.state_dict()
    return all(torch.equal(own[key], each) for key, each in wanted.items())


def loaded(**others: Path) -> Any:
    """The small FLUX with these instead of its own."""
    return load_pipeline(find_pipeline(BASE, parts=others))


@pytest.mark.parametrize("name", ["transformer", "vae", "text_encoder", "text_encoder_2"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_part_has_the_bits_of_its_file(name: str, kind: str, parts: Path) -> None:
    """And the others are the base's, which is still said to be random."""
    path = parts / name
    if kind == "file":
        (path,) = path.glob("*.safetensors")
    source = find_pipeline(BASE, parts={name: path})
    assert source.random
    pipe = load_pipeline(source)
    assert has(getattr(pipe, name), stored(parts / name))
    (other,) = {"vae", "transformer"} - {name} if name in ("vae", "transformer") else {"vae"}
    assert not has(getattr(pipe, other), stored(parts / other))


def test_all_parts_from_files_are_not_random(parts: Path) -> None:
    """Nothing of the base is left but its class, its scheduler and its words."""
    names = [part.name for part in find_parts(BASE)]
    assert not find_pipeline(BASE, parts={name: parts / name for name in names}).random


def test_a_file_of_a_denoiser_is_a_pipeline_with_a_base(parts: Path) -> None:
    """`SPEC --base` and `BASE --transformer` are the same; without a base it is told what it is."""
    file = parts / "transformer" / WEIGHTS
    source = find_pipeline(str(file), base=BASE)
    assert (source.spec, source.class_name) == (str(file), "FluxPipeline")
    assert source.parts == find_pipeline(BASE, parts={"transformer": file}).parts
    assert has(load_pipeline(source).transformer, stored(parts / "transformer"))
    assert find_pipeline(str(parts / "transformer"), base=BASE).parts[2].path == file.parent
    with pytest.raises(UsageError, match=r"is one network.* --base"):
        find_pipeline(str(file))
    with pytest.raises(UsageError, match="nothing for a base to add"):
        find_pipeline(BASE, base=BASE)
    with pytest.raises(UsageError, match="leave out the other one"):
        find_pipeline(str(file), base=BASE, parts={"transformer": file})


@pytest.mark.parametrize("name", ["transformer", "text_encoder_2", "vae"])
def test_what_was_packed_is_unpacked_to_the_same_bits(
    name: str, parts: Path, tmp_path: Path
) -> None:
    """A file of its own, whatever part it is."""
    halves = {key: each.bfloat16() for key, each in stored(parts / name).items()}
    save_file(halves, tmp_path / "half.safetensors")
    done = tightfit.pack(tmp_path / "half.safetensors", tmp_path / "packed.safetensors")
    assert done.packed > 0
    pipe = load_pipeline(
        find_pipeline(BASE, parts={name: tmp_path / "packed.safetensors"}), dtype=torch.bfloat16
    )
    assert has(getattr(pipe, name), halves)


@pytest.mark.parametrize("packed", [False, True])
def test_an_original_checkpoint_is_converted(packed: bool, parts: Path, tmp_path: Path) -> None:
    """In the names that it was published under; the configuration is the base's."""
    ours = stored(parts / "vae")
    vae: Any = load_part(find_parts(BASE)[-1], dtype=torch.float32)
    names = zip(vae.state_dict(), original_names(vae).items(), strict=True)
    original = {new: ours[old].reshape(shape).clone() for old, (new, shape) in names}
    path = tmp_path / "original.safetensors"
    save_file(
        {key: each.bfloat16() for key, each in original.items()} if packed else original, path
    )
    if packed:
        tightfit.pack(path, tmp_path / "packed.safetensors")
        path = tmp_path / "packed.safetensors"
        ours = {key: each.bfloat16() for key, each in ours.items()}
    pipe = load_pipeline(
        find_pipeline(BASE, parts={"vae": path}),
        dtype=torch.bfloat16 if packed else torch.float32,
    )
    assert has(pipe.vae, ours)
    assert pipe.vae.config.scaling_factor == 0.3611


def test_a_gguf_denoiser_keeps_its_blocks(parts: Path, tmp_path: Path) -> None:
    """Its matrices stay packed, and mean what the file's values mean."""
    path = tmp_path / "transformer.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    weights = stored(parts / "transformer")
    writer = gguf.GGUFWriter(str(path), "flux")
    for key, each in weights.items():
        values = each.numpy()
        if each.ndim == 2 and "blocks." in key:
            writer.add_tensor(key, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = find_pipeline(str(path), base=BASE)
    pipe = load_pipeline(source, dtype=torch.float32)
    layer = pipe.transformer.transformer_blocks[0].attn.to_q
    assert layer.weight.quant_type == kind
    x = torch.eye(128)
    meant = gguf.quants.dequantize(layer.weight.data.numpy(), kind)
    assert torch.allclose(layer(x) - layer.bias, torch.from_numpy(meant).T, atol=2e-3)
    name = "transformer_blocks.0.attn.to_q.weight"
    assert torch.allclose(torch.from_numpy(meant), weights[name], atol=2e-3)
    with pytest.raises(UsageError, match="is GGUF, whose weights stay"):
        load_pipeline(source, weights="fp8")


def changed(parts: Path, path: Path, **changes: Any) -> Path:
    """A copy of the transformer's file; None takes a tensor out."""
    weights = stored(parts / "transformer") | {
        key.replace("__", "."): each for key, each in changes.items()
    }
    save_file({key: each for key, each in weights.items() if each is not None}, path)
    return path


def test_a_file_of_another_architecture_is_refused_by_what_it_holds(
    parts: Path, tmp_path: Path
) -> None:
    """Before any weight is read: another class, another size, one too few, one too many."""
    wan = load_part(find_parts("random:wan2.1-t2v-1.3b-mini/transformer")[0], dtype=torch.float32)
    save_file(wan.state_dict(), tmp_path / "wan.safetensors")
    with pytest.raises(InputError, match=r"holds a WanTransformer3DModel .* is a FluxTr"):
        loaded(transformer=tmp_path / "wan.safetensors")
    path = tmp_path / "changed.safetensors"
    changed(parts, path, proj_out__weight=torch.zeros(8, 128))
    with pytest.raises(InputError, match=r"`proj_out\.weight` is \[8, 128\], where \[64, 128\]"):
        loaded(transformer=path)
    changed(parts, path, proj_out__weight=None)
    with pytest.raises(InputError, match=r"1 tensors .* such as `proj_out\.weight`"):
        loaded(transformer=path)
    changed(parts, path, surplus__weight=torch.zeros(8))
    with pytest.raises(InputError, match=r"it has `surplus\.weight`"):
        loaded(transformer=path)
    save_file({"some.weight": torch.zeros(8)}, path)
    with pytest.raises(InputError, match="has no keys of a FluxTransformer2DModel"):
        loaded(transformer=path)
    with pytest.raises(InputError, match="is a T5EncoderModel, and the text_encoder of"):
        loaded(text_encoder=parts / "text_encoder_2")


def test_a_file_that_is_no_weights_is_refused(parts: Path, tmp_path: Path) -> None:
    """Cut, of another kind, or not there."""
    whole = (parts / "transformer" / WEIGHTS).read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"Cannot load .*cut off"):
        loaded(transformer=path)
    with pytest.raises(InputError, match=r"Cannot load .*cut off"):
        find_pipeline(str(path), base=BASE)
    with pytest.raises(InputError, match="is no file or folder here"):
        loaded(transformer=tmp_path / "nowhere.safetensors")


def test_an_unknown_part_is_refused_with_those_near_it(parts: Path) -> None:
    """A UNet is also called a transformer, and nothing else has a second name."""
    with pytest.raises(UsageError, match="no part `text_encoder_3`: near it are text_encoder"):
        loaded(text_encoder_3=parts / "vae")
    found = find_pipeline("random:flux.1-dev-mini", parts={"unet": parts / "transformer"})
    assert found.parts[2].path == parts / "transformer"
