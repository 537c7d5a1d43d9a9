"""A shard as WebDataset reads it: a tar of ``NUMBER.safetensors`` and ``NUMBER.json`` pairs."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tightfit.cluster.shards.member import CHUNK, Format, Member, Piece
from tightfit.errors import InputError


class TarShard(Format):
    """Numbers are those of the items in the shard, since names may hold dots; no times, no users.

    A WebDataset sample ends at its first dot, so a name with one would be taken apart.
    """

    suffix = ".tar"

    def read(self, shard: Path) -> tuple[Member, ...]:
        pieces: dict[str, Piece] = {}
        told: dict[str, dict[str, object]] = {}
        try:
            with tarfile.open(shard, "r:") as tar:
                for info in tar:
                    key, _, kind = info.name.partition(".")
                    start = info.offset_data
                    if kind == "json":
                        opened = tar.extractfile(info)
                        assert opened is not None
                        told[key] = json.loads(opened.read())
                    else:
                        pieces[key] = Piece(shard, start, start + info.size)
            return tuple(
                Member(
                    str(item["name"]),
                    str(item["sha256"]),
                    int(str(item["bytes"])),
                    dict(item["about"]),  # type: ignore[call-overload]
                    whole=pieces[key],
                )
                for key, item in sorted(told.items())
            )
        except OSError as error:
            raise InputError(f"Cannot read {shard}: {error.strerror or error}.") from None
        except (tarfile.TarError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"Cannot use {shard}: it is no shard of latents ({error}).") from None

    def write(self, path: Path, members: Sequence[Member]) -> None:
        with tarfile.open(path, "w:", format=tarfile.GNU_FORMAT) as tar:
            for number, member in enumerate(members):
                assert member.whole is not None
                info = tarfile.TarInfo(f"{number:08d}.safetensors")
                info.size = member.whole.size
                with member.whole.file.open("rb") as opened:
                    opened.seek(member.whole.begin)
                    tar.addfile(info, opened)
                text = json.dumps(member.told, sort_keys=True).encode()
                info = tarfile.TarInfo(f"{number:08d}.json")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))

    def is_whole(self, member: Member) -> bool:
        assert member.whole is not None
        digest, left = sha256(), member.whole.size
        with member.whole.file.open("rb") as opened:
            opened.seek(member.whole.begin)
            while left and (chunk := opened.read(min(CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
        return digest.hexdigest() == member.sha256
