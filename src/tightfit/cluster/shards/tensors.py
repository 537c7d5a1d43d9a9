"""A shard as one safetensors file: the tensors of item NAME are ``NAME/latent`` and so on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from tightfit.cluster.shards.member import Format, Member, Piece
from tightfit.errors import InputError
from tightfit.media.latents import content_hash
from tightfit.weigh.files.safetensors_layout import BITS, LENGTH, read_layout

_ITEMS, _VERSION = "items", "version"


class TensorShard(Format):
    """Header and tensors are laid as the safetensors library lays them: wide types first."""

    suffix = ".safetensors"

    def read(self, shard: Path) -> tuple[Member, ...]:
        layout = read_layout(shard)
        owned = defaultdict[str, list[tuple[str, str, tuple[int, ...], Piece]]](list)
        for e in layout.entries:
            item, _, name = e.name.rpartition("/")
            piece = Piece(shard, layout.start + e.begin, layout.start + e.end)
            owned[item].append((name, e.dtype, e.shape, piece))
        try:
            return tuple(
                Member(
                    item["name"],
                    item["sha256"],
                    item["bytes"],
                    item["about"],
                    tuple(owned[item["name"]]),
                )
                for item in json.loads(layout.metadata[_ITEMS])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Cannot use {shard}: it is no shard of latents ({error}).") from None

    def write(self, path: Path, members: Sequence[Member]) -> None:
        laid = sorted(
            (
                (-BITS[dtype], at, name, f"{member.name}/{name}", dtype, shape, piece)
                for at, member in enumerate(members)
                for name, dtype, shape, piece in member.tensors
            ),
            key=lambda each: each[:3],
        )
        header: dict[str, object] = {
            "__metadata__": {
                _VERSION: "1",
                _ITEMS: json.dumps([member.told for member in members], sort_keys=True),
            }
        }
        offset = 0
        for *_, name, dtype, shape, piece in laid:
            header[name] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [offset, offset + piece.size],
            }
            offset += piece.size
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH)
        with path.open("wb") as out:
            out.write(len(text).to_bytes(LENGTH, "little") + text)
            for *_, piece in laid:
                piece.copy_to(out)

    def is_whole(self, member: Member) -> bool:
        if not member.tensors or "sha256" not in member.about:
            return False
        shard = member.tensors[0][3].file
        with safe_open(str(shard), framework="pt") as handle:
            tensors = {
                name: handle.get_tensor(f"{member.name}/{name}").clone()
                for name, *_ in member.tensors
            }
        return content_hash(tensors, member.about) == member.about["sha256"]
