"""Headers of safetensors: what is in them, what is refused, shards, folders, ties, packed types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import save_file, save_model

from tests.weigh.header_makers import (
    entries_of,
    header_of,
    mixed_header,
    write_entries,
    write_safetensors,
)
from tightfit.errors import InputError, UsageError
from tightfit.weigh.files.headers import component_folders, read_header
from tightfit.weigh.files.safetensors_layout import BITS

TWO = {"a.weight": ("F32", (4, 8)), "a.bias": ("BF16", (4,))}


def refusal(path: Path) -> str:
    """Why `path` is refused; every refusal names the path."""
    with pytest.raises(InputError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message or str(path.parent) in message
    return message


def test_a_header_says_what_the_library_wrote(tmp_path: Path) -> None:
    """Names, shapes, types and bytes of every type that PyTorch saves."""
    tensors = {
        str(dtype): torch.zeros(2, 4).to(dtype)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
        + (torch.float8_e5m2, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64)
    }
    tensors["half bytes"] = torch.zeros(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors["none"], tensors["one"] = torch.zeros(0, 3), torch.zeros(())
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert header.format == "safetensors"
    assert header.files == (path,)
    assert set(header.by_name) == set(tensors)
    for name, tensor in tensors.items():
        assert header.by_name[name].stored_bytes == tensor.nbytes, name
        if name != "half bytes":
            assert header.by_name[name].shape == tuple(tensor.shape)
    assert header.by_name["half bytes"].elements == 16
    assert header.weight_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_the_header_of_a_large_file_is_read_alone(tmp_path: Path) -> None:
    """Of 24 GB, no more than the header's own bytes and a first look go through `read`."""
    shapes = {f"blocks.{n}.weight": ("BF16", (4096, 3072)) for n in range(1000)}
    path = write_safetensors(tmp_path / "large.safetensors", shapes)
    assert path.stat().st_size > 24e9
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    before = psutil.Process().io_counters().read_chars
    header = read_header(path)
    assert psutil.Process().io_counters().read_chars - before < length + 4096
    assert header.weight_bytes == 1000 * 4096 * 3072 * 2
    assert header.dtype == "BF16"


def test_weighing_a_file_imports_no_torch(tmp_path: Path) -> None:
    """Nor numpy, nor transformers: header, recognition, parts and blocks are plain Python."""
    path = write_safetensors(tmp_path / "model.safetensors", TWO)
    code = f"""if True:
        import sys
        from pathlib import Path
        from tightfit.weigh.files.header_blocks import blocks_of_header
        from tightfit.weigh.files.headers import read_header
        from tightfit.weigh.files.parts import parts_of_header
        from tightfit.weigh.files.recognise import recognise
        header = read_header(Path({str(path)!r}))
        assert recognise(header) is None
        assert blocks_of_header(parts_of_header(header)["model"], "bfloat16").stored_bytes == 136
        sys.exit(bool({{"torch", "numpy", "transformers", "safetensors"}} & set(sys.modules)))
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("cut", [1, 100, 136])
def test_f03_a_file_cut_in_its_tensors_is_refused_with_both_sizes(tmp_path: Path, cut: int) -> None:
    """Where it should end, and where it does."""
    path = write_safetensors(tmp_path / "model.safetensors", TWO)
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole - cut)
    message = refusal(path)
    assert "cut off" in message
    assert f"{whole:,}" in message
    assert f"{whole - cut:,}" in message


@pytest.mark.parametrize("left", [0, 7, 8, 9, 60])
def test_f03_a_file_cut_in_its_header_is_refused(tmp_path: Path, left: int) -> None:
    """Down to nothing at all."""
    path = write_safetensors(tmp_path / "model.safetensors", TWO)
    with path.open("r+b") as file:
        file.truncate(left)
    assert f"{left} bytes" in refusal(path)


def test_f03_trailing_bytes_are_refused_with_both_sizes(tmp_path: Path) -> None:
    """One policy, which is the library's too."""
    path = write_safetensors(tmp_path / "model.safetensors", TWO)
    whole = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(whole + 512)
    message = refusal(path)
    assert f"{whole:,}" in message
    assert "512 bytes more" in message


def test_f03_a_header_length_that_no_file_has_is_refused(tmp_path: Path) -> None:
    """2^60 bytes are not looked for, let alone allocated."""
    path = write_safetensors(tmp_path / "model.safetensors", TWO)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write((2**60).to_bytes(8, "little"))
    message = refusal(path)
    assert f"{2**60 + 8:,}" in message
    assert f"{size:,}" in message


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """One tensor of a header, right or wrong."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"a": entry(), "b": entry()}, "`b` overlaps"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, "`b` overlaps"),
        ({"a": entry(), "b": entry(offsets=[16, 24])}, "`b` lies behind a hole"),
        ({"a": entry(offsets=[1, 9])}, "`a` lies behind a hole"),
        ({"a": entry(offsets=[0, 2**62])}, "`a` takes"),
        ({"a": entry(shape=[2**62], offsets=[0, 2**64])}, "cut off"),
        ({"a": entry(offsets=[8, 0])}, "`a` takes"),
        ({"a": entry(shape=[3])}, "`a` takes 8 bytes"),
        ({"a": entry(shape=[-2])}, "no whole numbers"),
        ({"a": entry(shape=[2.0])}, "no whole numbers"),
        ({"a": entry(shape=[True, 2])}, "no whole numbers"),
        ({"a": entry(shape=2)}, "lacks a type"),
        ({"a": entry(offsets=[0])}, "lacks a type"),
        ({"a": entry(dtype="F33")}, "unknown type `F33`"),
        ({"a": entry(dtype=["F32"])}, "unknown type"),
        ({"a": entry(dtype="F4", shape=[15])}, "needs 7.5"),
        ({"a": 3}, "lacks a type"),
        ({"__metadata__": {"a": 1}}, "__metadata__"),
        ({"__metadata__": [1]}, "__metadata__"),
        ([1, 2], "lists no tensors"),
    ],
)
def test_f03_a_header_that_does_not_add_up_is_refused(
    tmp_path: Path, entries: Any, reason: str
) -> None:
    """Overlaps, holes, offsets out of range, bytes that are not shape times type, nonsense."""
    assert reason in refusal(write_entries(tmp_path / "model.safetensors", entries, 24))


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 1}', b"NaN"])
def test_f03_a_header_that_is_no_json_is_refused(tmp_path: Path, text: bytes) -> None:
    """Half of it, other encodings, a tower of brackets, a name that stands twice."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    assert "its header of" in refusal(path)


@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 4), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    victim=st.integers(0, 3),
    slip=st.sampled_from([(0, 0)] * 3 + [(1, 1), (-1, -1), (0, 4), (-4, 0), (8, 8)]),
    more=st.sampled_from([0, 0, 0, 1, -1, 8]),
)
def test_a_file_is_taken_exactly_where_the_library_takes_it(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[tuple[str, list[int]]],
    victim: int,
    slip: tuple[int, int],
    more: int,
) -> None:
    """Whatever is wrong with offsets and sizes, the two verdicts agree."""
    entries, end = entries_of({f"t{number}": one for number, one in enumerate(tensors)})
    offsets = entries[f"t{victim % len(tensors)}"]["data_offsets"]
    offsets[:] = [max(0, offset + by) for offset, by in zip(offsets, slip, strict=True)]
    path = tmp_path_factory.mktemp("any") / "any.safetensors"
    write_entries(path, entries, max(0, end + more))
    try:
        expected = {name: tuple(info["shape"]) for name, info in deserialize(path.read_bytes())}
    except SafetensorError:
        refusal(path)
    else:
        assert {t.name: t.shape for t in read_header(path).tensors} == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """No other error comes out, and nothing but a header is accepted."""
    path = tmp_path_factory.mktemp("any") / "any.safetensors"
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    try:
        read_header(path)
    except InputError:
        return
    assert deserialize(path.read_bytes()) is not None


def test_what_is_no_file_of_tensors_is_said(tmp_path: Path) -> None:
    """A missing path, a pickle under any name, and a pointer that git-lfs left."""
    assert "no such file" in refusal(tmp_path / "missing.safetensors")
    pickle = tmp_path / "model.bin"
    torch.save({}, pickle)
    assert "pickle" in refusal(pickle)
    renamed = pickle.rename(tmp_path / "model.safetensors")
    assert "pickle" in refusal(renamed)
    renamed.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 23782506688\n"
    )
    message = refusal(renamed)
    assert "git-lfs pointer" in message
    assert "23,782,506,688" in message
    (tmp_path / "x.safetensors.index.json").write_text(renamed.read_text())
    assert "git-lfs pointer" in refusal(tmp_path / "x.safetensors.index.json")


def sharded(folder: Path, stem: str = "model", variant: str = "") -> Path:
    """Two shards and their index, as the libraries name them."""
    folder.mkdir(exist_ok=True)
    dot = f".{variant}" if variant else ""
    places = {}
    for number, name in enumerate(("a", "b"), start=1):
        file = f"{stem}{dot}-0000{number}-of-00002.safetensors"
        write_safetensors(folder / file, {f"{name}.weight": ("F16", (4, number))})
        places[f"{name}.weight"] = file
    index = folder / f"{stem}.safetensors.index{dot}.json"
    index.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": places}))
    return index


def test_shards_are_one_header(tmp_path: Path) -> None:
    """By their index, or by the folder they are in."""
    index = sharded(tmp_path)
    for path in (index, tmp_path):
        header = read_header(path)
        assert header.path == path
        assert {name: t.stored_bytes for name, t in header.by_name.items()} == {
            "a.weight": 8,
            "b.weight": 16,
        }
        assert [file.name for file in header.files] == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]


def test_a_tensor_in_two_shards_is_counted_where_the_index_places_it(tmp_path: Path) -> None:
    """What the index does not place is loaded all the same, and is counted."""
    sharded(tmp_path)
    second = {"b.weight": ("F16", (4, 2)), "a.weight": ("F32", (9,)), "new": ("F32", (3,))}
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", second)
    header = read_header(tmp_path)
    assert header.weight_bytes == 8 + 16 + 12
    assert len(header.tensors) == 3


def test_an_incomplete_set_of_shards_is_refused(tmp_path: Path) -> None:
    """A file that is missing, a tensor that is not in its file, an index that places nothing."""
    index = sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "elsewhere")
    message = refusal(index)
    assert "1 of its 2 files" in message
    assert "model-00002-of-00002.safetensors" in message
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": ("F16", (4,))})
    assert "`b.weight` is not in model-00002-of-00002.safetensors" in refusal(index)
    for content, reason in (
        ("{", "no JSON"),
        ("[]", "no object"),
        ("{}", "weight_map"),
        ('{"weight_map": {"a": 1}}', "weight_map"),
        ('{"weight_map": {}}', "empty"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "no file beside it"),
    ):
        index.write_text(content)
        assert reason in refusal(index)
    index.unlink()
    assert "no index" in refusal(tmp_path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """Not the index that led there."""
    index = sharded(tmp_path)
    victim = tmp_path / "model-00002-of-00002.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(InputError, match="model-00002-of-00002"):
        read_header(index)


@pytest.mark.parametrize("stem", ["diffusion_pytorch_model", "model", "wan2.1_t2v"])
def test_a_folder_holds_one_model_and_says_of_which_class(tmp_path: Path, stem: str) -> None:
    """diffusers' and transformers' names, or the only file there is; variants stand back."""
    write_safetensors(tmp_path / f"{stem}.safetensors", TWO)
    if stem != "wan2.1_t2v":
        write_safetensors(tmp_path / f"{stem}.fp16.safetensors", {"a": ("F16", (1,))})
    assert read_header(tmp_path).class_name is None
    (tmp_path / "config.json").write_text('{"architectures": ["T5EncoderModel"]}')
    assert read_header(tmp_path).class_name == "T5EncoderModel"
    (tmp_path / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    header = read_header(tmp_path)
    assert header.class_name == "FluxTransformer2DModel"
    assert header.path == tmp_path
    assert header.weight_bytes == 136


def test_a_variant_is_taken_where_there_is_nothing_else(tmp_path: Path) -> None:
    """One file, or shards with an index in diffusers' spelling."""
    one = tmp_path / "one"
    one.mkdir()
    write_safetensors(one / "diffusion_pytorch_model.fp16.safetensors", TWO)
    assert read_header(one).weight_bytes == 136
    sharded(tmp_path / "many", "diffusion_pytorch_model", "fp16")
    assert read_header(tmp_path / "many").weight_bytes == 24


def test_a_folder_without_weights_that_can_be_weighed_says_why(tmp_path: Path) -> None:
    """Nothing, pickles alone, or a whole pipeline."""
    assert "no .safetensors" in refusal(tmp_path)
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert "pickle" in refusal(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", TWO)
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    assert "whole pipeline" in refusal(tmp_path)


def test_a_pipelines_parts_with_weights_are_found(tmp_path: Path) -> None:
    """Schedulers, tokenizers and processors have none; a part that is missing is named."""
    index = {
        "_class_name": "FluxPipeline",
        "_diffusers_version": "0.42.1",
        "requires_safety_checker": False,
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "image_encoder": [None, None],
        "tokenizer": ["transformers", "CLIPTokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    with pytest.raises(InputError, match="no model_index"):
        component_folders(tmp_path)
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    for part in ("text_encoder", "transformer", "vae"):
        with pytest.raises(InputError, match=f"`{part}`"):
            component_folders(tmp_path)
        (tmp_path / part).mkdir()
    assert component_folders(tmp_path) == {
        part: tmp_path / part for part in ("text_encoder", "transformer", "vae")
    }


def test_an_embedding_that_t5_files_store_twice_counts_once(tmp_path: Path) -> None:
    """Under any prefix; a second tensor of another shape is another tensor."""
    for prefix in ("", "text_encoders.t5xxl.transformer."):
        copies = {
            f"{prefix}shared.weight": ("F16", (32, 4)),
            f"{prefix}encoder.embed_tokens.weight": ("F16", (32, 4)),
        }
        header = read_header(write_safetensors(tmp_path / "t5.safetensors", copies))
        assert header.weight_bytes == 256
        assert dict(header.ties) == {
            f"{prefix}encoder.embed_tokens.weight": f"{prefix}shared.weight"
        }
    copies["text_encoders.t5xxl.transformer.shared.weight"] = ("F16", (33, 4))
    header = read_header(write_safetensors(tmp_path / "t5.safetensors", copies))
    assert header.weight_bytes == 256 + 264


def test_a_tie_that_the_library_left_out_is_known_from_the_metadata(tmp_path: Path) -> None:
    """`save_model` writes one of two tied tensors, and the name of the other beside it."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[1].weight = module[0].weight
    path = tmp_path / "tied.safetensors"
    save_model(module, str(path))
    header = read_header(path)
    assert header.weight_bytes == 4 * (16 + 4 + 4)
    assert dict(header.ties) == {"1.weight": "0.weight"}


def test_a_head_counts_apart_unless_the_configuration_ties_it(tmp_path: Path) -> None:
    """Keys alone do not tell: most language models that store a head have two tensors."""
    tensors = {"model.embed_tokens.weight": ("F16", (8, 2)), "lm_head.weight": ("F16", (8, 2))}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert read_header(tmp_path).weight_bytes == 64
    for config, expected in (
        ({"tie_word_embeddings": True}, 32),
        ({"tie_word_embeddings": False}, 64),
        ({"text_config": {"tie_word_embeddings": True}}, 32),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, 64),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert read_header(tmp_path).weight_bytes == expected


PACKED = {
    "fp8, ComfyUI's scales": {
        "l.weight": ("F8_E4M3", (64, 32)),
        "l.scale_weight": ("F32", (1,)),
        "l.scale_input": ("F32", (1,)),
        "scaled_fp8": ("F8_E4M3", (2,)),
    },
    "fp8, another spelling": {
        "l.weight": ("F8_E4M3", (64, 32)),
        "l.weight_scale": ("BF16", (64, 1)),
        "l.input_scale": ("F32", ()),
    },
    "bitsandbytes nf4": {
        "l.weight": ("U8", (1024, 1)),
        "l.weight.absmax": ("U8", (32,)),
        "l.weight.nested_absmax": ("F32", (1,)),
        "l.weight.nested_quant_map": ("F32", (256,)),
        "l.weight.quant_map": ("F32", (16,)),
        "l.weight.quant_state.bitsandbytes__nf4": ("U8", (90,)),
    },
    "bitsandbytes int8": {
        "l.weight": ("I8", (64, 32)),
        "l.SCB": ("F32", (64,)),
        "l.weight_format": ("U8", ()),
    },
    "nvfp4": {
        "l.weight": ("U8", (64, 16)),
        "l.weight_scale": ("F8_E4M3", (64, 2)),
        "l.weight_scale_2": ("F32", ()),
    },
    "quanto, eight bits": {"l.weight._data": ("I8", (64, 32)), "l.weight._scale": ("F16", (64, 1))},
    "quanto, four bits": {
        "l.weight._data": ("U8", (32, 32)),
        "l.weight._scale": ("F16", (64, 1)),
        "l.weight._shift": ("F16", (64, 1)),
    },
    "four bits in integers": {
        "l.qweight": ("I32", (8, 32)),
        "l.scales": ("F16", (1, 64)),
        "l.qzeros": ("I32", (1, 8)),
    },
    "eight bits, no scales": {"l.weight": ("I8", (64, 32))},
}


@pytest.mark.parametrize("layout", PACKED)
def test_q05_a_packed_weight_is_its_stored_bytes_and_its_logical_values(layout: str) -> None:
    """2048 values in each layout; the copy in a compute dtype is theirs, and scales have none."""
    header = mixed_header(PACKED[layout])
    assert header.elements == 64 * 32
    assert sum(tensor.converted("bfloat16") for tensor in header.tensors) == 2 * 64 * 32
    assert sum(tensor.converted("float32") for tensor in header.tensors) == 4 * 64 * 32
    assert header.weight_bytes == sum(tensor.stored_bytes for tensor in header.tensors)


def test_names_that_belong_to_scales_hold_values_where_nothing_is_packed() -> None:
    """A `scales` or an `absmax` of a model's own is a weight."""
    header = header_of({"l.scales": (5,), "l.weight.absmax": (7,), "weight_scale": (2,)})
    assert header.elements == 14


def test_what_is_stored_in_the_compute_dtype_needs_no_copy() -> None:
    """Nor do integers that are no weights: indices, counters, a tokenizer's bytes."""
    tensors = {
        "same": ("BF16", (8,)),
        "wider": ("F32", (8,)),
        "ids": ("I64", (1, 77)),
        "count": ("I64", ()),
        "mask": ("BOOL", (4, 4)),
        "spiece_model": ("U8", (4_548_313,)),
    }
    header = mixed_header(tensors)
    sizes = {name: tensor.converted("bfloat16") for name, tensor in header.by_name.items()}
    assert sizes == {"same": 0, "wider": 16, "ids": 0, "count": 0, "mask": 0, "spiece_model": 0}
    assert header.elements == 16


def test_an_unknown_compute_dtype_is_refused() -> None:
    """With the ones there are."""
    with pytest.raises(UsageError, match="float32, float16, bfloat16"):
        header_of({"a": (1,)}).tensors[0].converted("float8_e4m3fn")
