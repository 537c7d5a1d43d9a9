"""Which items go into which shard, and when one is put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tightfit.api.batches.made_from import content_of
from tightfit.cluster.shards.member import Format, Member, Piece
from tightfit.cluster.shards.tar import TarShard
from tightfit.cluster.shards.tensors import TensorShard
from tightfit.errors import InputError, UsageError
from tightfit.media.files import whole_file
from tightfit.weigh.files.safetensors_layout import read_layout

PARTS = ".tightfit-parts"
"""In the folder of the outputs: latents that wait for their shard."""
FORMATS: Mapping[str, Format] = {"safetensors": TensorShard(), "webdataset": TarShard()}


@dataclass(frozen=True)
class Sharding:
    """So many items a shard, in this format."""

    count: int
    format: str = "safetensors"

    def __post_init__(self) -> None:
        """Refuse what nobody can mean."""
        if self.count < 1:
            raise UsageError(f"--shards `{self.count}`: a shard holds one item at least.")
        if self.format not in FORMATS:
            raise UsageError(f"--shard-format `{self.format}`: use {' or '.join(FORMATS)}.")

    def place(self, folder: Path, index: int) -> Path:
        """The shard of item `index`."""
        return folder / f"shard-{index // self.count:06d}{FORMATS[self.format].suffix}"


def format_of(shard: Path) -> Format:
    """By its ending."""
    return next(each for each in FORMATS.values() if each.suffix == shard.suffix)


def held(shard: Path, name: str, made: Mapping[str, Any]) -> Member | None:
    """The member `name` of `shard`, where it is there, whole, and made of this in this way."""
    try:
        status = shard.stat()
        member = _members(shard, status.st_size, status.st_mtime_ns).get(name)
        if member is None or json.loads(member.about.get("source", "null")) != made:
            return None
        return member if format_of(shard).is_whole(member) else None
    except (OSError, ValueError, InputError):
        return None


def assemble(shard: Path, names: Sequence[str], parts: Path) -> bool:
    """Make `shard` hold `names` in this order, of the parts that are there and of what it holds.

    Parts go when the shard is whole on the disk; one that holds just this already is left as it is,
    so doing it twice is doing it once. Whether it was written. Without `names` there is no shard.
    Raises `InputError` where the disk is full, or a name is in neither.
    """
    form = format_of(shard)
    before: dict[str, Member] = {}
    if shard.is_file():
        with suppress(InputError):
            before = {member.name: member for member in form.read(shard)}
    fresh = {name: parts / f"{name}.safetensors" for name in names}
    fresh = {name: path for name, path in fresh.items() if path.is_file()}
    members = [
        _part(name, fresh[name]) if name in fresh else _of(before, name, shard) for name in names
    ]
    wanted = [(member.name, member.sha256) for member in members]
    is_there = wanted == [(member.name, member.sha256) for member in before.values()]
    if not members:
        shard.unlink(missing_ok=True)
    elif not is_there:
        size = sum(member.size for member in members)
        with whole_file(shard, needs=size) as temporary:
            form.write(temporary, members)
    for path in fresh.values():
        path.unlink(missing_ok=True)
    return not is_there


def _of(before: Mapping[str, Member], name: str, shard: Path) -> Member:
    if name not in before:
        raise InputError(f"Cannot write {shard}: the latent of `{name}` is gone; encode it anew.")
    return before[name]


def _part(name: str, path: Path) -> Member:
    layout = read_layout(path)
    size = path.stat().st_size
    base = layout.start
    return Member(
        name,
        content_of(path),
        size,
        dict(layout.metadata),
        tuple(
            (e.name, e.dtype, e.shape, Piece(path, base + e.begin, base + e.end))
            for e in layout.entries
        ),
        Piece(path, 0, size),
    )


@lru_cache(maxsize=8)
def _members(shard: Path, size: int, time: int) -> dict[str, Member]:
    """Read once, as long as the file is the same."""
    del size, time
    return {member.name: member for member in format_of(shard).read(shard)}
