"""Files of true-size models, which take no room on the disk: headers, and a hole behind each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

from tests.weigh import original_names as original
from tests.weigh.header_makers import Gguf, write_safetensors

Shapes = original.Shapes


def under(prefix: str, shapes: Shapes) -> Shapes:
    """The same tensors as part of a bundle."""
    return {prefix + name: shape for name, shape in shapes.items()}


def sdxl_bundle() -> Shapes:
    """SDXL in one file, as it was published."""
    return (
        under(
            "model.diffusion_model.",
            original.unet((320, 640, 1280), (0, 2, 10), 2048, xl=True),
        )
        | under("first_stage_model.", original.autoencoder(4, quantised=True))
        | under("conditioner.embedders.0.transformer.", original.clip(768, 12))
        | under("conditioner.embedders.1.model.", original.open_clip())
    )


SHAPES: dict[str, Callable[[], Shapes]] = {
    "flux": original.flux,
    "flux2": original.flux2,
    "wan14": lambda: original.wan(5120, 13824, 40),
    "wan1.3": lambda: original.wan(1536, 8960, 30),
    "ltx": original.ltx_video,
    "hunyuan": original.hunyuan_video,
    "sdxl": sdxl_bundle,
    "flux-vae": lambda: original.autoencoder(16, quantised=False),
    "wan-vae": original.wan_autoencoder,
    "t5": lambda: original.t5(32128, every_bias=False),
    "unknown": lambda: {
        "blocks.0.mix.weight": (64, 64),
        "blocks.1.mix.weight": (64, 64),
        "head.weight": (64, 64),
    },
}


def model_file(folder: Path, name: str, dtype: str = "BF16") -> Path:
    """One of `SHAPES` in a safetensors file of its own."""
    tensors = {key: (dtype, shape) for key, shape in SHAPES[name]().items()}
    return write_safetensors(folder / f"{name}.safetensors", tensors)


def sharded(folder: Path, name: str, dtype: str = "BF16", shards: int = 3) -> Path:
    """The same in shards with an index, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    shapes = SHAPES[name]()
    keys = list(shapes)
    places: dict[str, str] = {}
    length = -(-len(keys) // shards)
    for shard in range(shards):
        file = f"diffusion_pytorch_model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: (dtype, shapes[key]) for key in keys[shard * length : (shard + 1) * length]}
        write_safetensors(folder / file, part)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    path = folder / "diffusion_pytorch_model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    return folder


def gguf_file(folder: Path, name: str, kind: str = "Q4_K") -> Path:
    """The same with matrices in `kind` and the rest in F32, where their rows are whole blocks."""
    made = Gguf()
    for key, shape in SHAPES[name]().items():
        packed = len(shape) > 1 and shape[-1] % 256 == 0 and prod(shape) % 256 == 0
        made.tensor(key, shape, kind if packed else "F32")
    return made.write(folder / f"{name}.gguf")


def broken_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files that cannot be planned, and words of what is said about each."""
    whole = model_file(folder, "unknown").read_bytes()
    for name, data, words in (
        ("text.safetensors", b"hello, this is a text and no model at all", "no safetensors file"),
        ("text.gguf", b"hello, this is a text and no model at all", "no safetensors file"),
        ("short.safetensors", whole[:40], "it is cut off"),
        ("cut.safetensors", whole[:-100], "it is cut off"),
        ("empty.safetensors", b"", "0 bytes"),
        ("no-json.safetensors", (8).to_bytes(8, "little") + b"{{{{{{{{", "damaged"),
        ("huge.safetensors", (2**60).to_bytes(8, "little") + b"{}", "it is cut off"),
        ("no-tensors.safetensors", (2).to_bytes(8, "little") + b"{}", "no tensors"),
        ("pickle.ckpt", b"\x80\x04}q\x00.", "it is a pickle"),
        ("pickle.safetensors", b"PK\x03\x04" + bytes(100), "it is a pickle"),
    ):
        path = folder / name
        path.write_bytes(data)
        yield path, words
    folder.joinpath("nothing").mkdir()
    yield folder / "nothing", "no .safetensors and no .gguf file"
    yield folder / "absent.safetensors", "no file or folder here"
