"""Small checkpoints, written byte by byte, so that a header may look like nobody else's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch

from tightfit.weigh.files.safetensors_layout import BITS

Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""A type and a shape for each name."""

ODD = {"format": "pt", "é\u2028": '"quoted" \\ \n', "": "", "modelspec.title": "x" * 50}
"""Metadata that break what is careless with texts."""


def some_bytes(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """Of a tensor, the same for the same name: bf16 as trained weights are, any others as noise."""
    size = prod(shape) * BITS[dtype] // 8
    generator = torch.Generator().manual_seed(int(sha256(name.encode()).hexdigest()[:8], 16))
    if dtype == "BF16":
        values = torch.randn(prod(shape), generator=generator) * 0.02
        return values.bfloat16().view(torch.uint8).numpy().tobytes()
    drawn = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return drawn.numpy().tobytes()


def checkpoint(
    path: Path,
    tensors: Tensors,
    *,
    metadata: Mapping[str, str] | None = None,
    **style: Any,
) -> Path:
    """A file with these tensors one behind the other; `style` is of `json.dumps`."""
    content: dict[str, Any] = {}
    data: list[bytes] = []
    end = 0
    for name, (dtype, shape) in tensors.items():
        own = some_bytes(name, dtype, shape)
        content[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [end, end + len(own)],
        }
        data.append(own)
        end += len(own)
    if metadata is not None:
        content["__metadata__"] = dict(metadata)
    text = json.dumps(content, **style).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    return path


def model(*names: str) -> Tensors:
    """Of each name one matrix that shrinks, and a bias that is too small for it."""
    return {
        full: each
        for name in names
        for full, each in (
            (f"{name}.weight", ("BF16", (256, 128))),
            (f"{name}.bias", ("F32", (9,))),
        )
    }


def sharded(folder: Path, shards: int = 3) -> Path:
    """A model in so many shards, with an index whose total is not what the files add up to."""
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for shard in range(1, shards + 1):
        file = f"model-{shard:05}-of-{shards:05}.safetensors"
        part = model(f"layers.{shard}.up", f"layers.{shard}.down")
        checkpoint(folder / file, part, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"weight_map": places, "metadata": {"total_size": 7, "kept": [1, 2]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")
    (folder / "config.json").write_text("{}")
    return folder


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """All that is in a folder: bytes of files, texts of links, None of folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = path.readlink().as_posix()
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def damage(path: Path, at: int) -> None:
    """Turn one bit of the byte at `at`."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
