"""Many latents in one file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tightfit.cluster.shards.groups import FORMATS, Sharding, assemble, format_of, held
from tightfit.errors import InputError, UsageError
from tightfit.media.latents import LatentFile, save_latent


def latent(seed: int, **more: object) -> LatentFile:
    """A small one; odd numbers of bytes of alpha, so that alignment is not for nothing."""
    values = torch.randn(1, 4, 3, 5, generator=torch.Generator().manual_seed(seed))
    file = LatentFile(
        latent=values, vae="V", ratio=(1, 8), dtype="float32", width=5, height=3, source={"n": seed}
    )
    return replace(file, **more)


@dataclass
class Folder:
    """Parts, and the shard that they go into."""

    shard: Path
    parts: Path

    def write(self, *names: str, **more: object) -> dict[str, bytes]:
        """Parts of these names; their bytes."""
        self.parts.mkdir(exist_ok=True)
        for name in names:
            save_latent(self.parts / f"{name}.safetensors", latent(len(name), **more))
        return {name: (self.parts / f"{name}.safetensors").read_bytes() for name in names}

    def names(self) -> list[str]:
        return [member.name for member in format_of(self.shard).read(self.shard)]


@pytest.fixture(params=sorted(FORMATS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(Sharding(3, request.param).place(tmp_path, 0), tmp_path / "parts")


def test_parts_become_a_shard_and_go(folder: Folder) -> None:
    """In the order that is asked for; each is found again, whole, with what it was made of."""
    alpha = torch.rand(1, 1, 3, 5).half()
    folder.write("bb")
    folder.write("a", "ccc", alpha=alpha, background=(1.0, 1.0, 1.0))
    assert assemble(folder.shard, ["ccc", "a", "bb"], folder.parts)
    assert folder.names() == ["ccc", "a", "bb"]
    assert not list(folder.parts.iterdir())
    for name in ("a", "bb", "ccc"):
        assert held(folder.shard, name, {"n": len(name)}) is not None
        assert held(folder.shard, name, {"n": 9}) is None
    assert held(folder.shard, "d", {"n": 1}) is None


def test_the_same_parts_give_the_same_bytes(folder: Folder) -> None:
    """However often they are put together, and whether all are new or some were in it before."""
    folder.write("a", "bb", "ccc")
    assemble(folder.shard, ["a", "bb", "ccc"], folder.parts)
    at_once = folder.shard.read_bytes()
    assert not assemble(folder.shard, ["a", "bb", "ccc"], folder.parts)
    folder.shard.unlink()
    for names in (["a"], ["a", "ccc"], ["a", "bb", "ccc"]):
        folder.write(names[len(names) // 2])
        assert assemble(folder.shard, names, folder.parts)
    assert folder.shard.read_bytes() == at_once


def test_a_part_replaces_what_was_in_the_shard(folder: Folder) -> None:
    """Its source changed; the others stay as they were, and one that is not wanted goes."""
    folder.write("a", "bb", "ccc")
    assemble(folder.shard, ["a", "bb", "ccc"], folder.parts)
    folder.write("bb", source={"n": 7})
    assert assemble(folder.shard, ["a", "bb"], folder.parts)
    assert folder.names() == ["a", "bb"]
    assert held(folder.shard, "bb", {"n": 7}) is not None
    assert held(folder.shard, "a", {"n": 1}) is not None


def test_a_member_that_was_damaged_is_not_held(folder: Folder) -> None:
    """It is made again; the other one is right."""
    written = folder.write("a", "bb")
    assemble(folder.shard, ["a", "bb"], folder.parts)
    content = bytearray(folder.shard.read_bytes())
    tail = written["bb"][-40:]
    content[content.index(tail) + 7] ^= 1
    folder.shard.write_bytes(content)
    assert held(folder.shard, "bb", {"n": 2}) is None
    assert held(folder.shard, "a", {"n": 1}) is not None


def test_what_is_no_shard_holds_nothing(folder: Folder) -> None:
    """And is written anew where the parts are there; where one is gone, that is said."""
    folder.shard.write_bytes(b"nonsense" * 100)
    assert held(folder.shard, "a", {"n": 1}) is None
    folder.write("a")
    with pytest.raises(InputError, match="the latent of `bb` is gone"):
        assemble(folder.shard, ["a", "bb"], folder.parts)
    assert assemble(folder.shard, ["a"], folder.parts)
    assert folder.names() == ["a"]


def test_without_items_there_is_no_shard(folder: Folder) -> None:
    """All of them failed."""
    folder.write("a")
    assemble(folder.shard, ["a"], folder.parts)
    assemble(folder.shard, [], folder.parts)
    assert not folder.shard.exists()


def test_a_tensor_shard_is_a_safetensors_file(tmp_path: Path) -> None:
    """That the library itself opens."""
    folder = Folder(Sharding(9).place(tmp_path, 10), tmp_path / "parts")
    assert folder.shard.name == "shard-000001.safetensors"
    folder.write("a", "bb")
    assemble(folder.shard, ["a", "bb"], folder.parts)
    with safe_open(str(folder.shard), framework="pt") as handle:
        assert sorted(handle.keys()) == ["a/latent", "bb/latent"]
        assert torch.equal(handle.get_tensor("bb/latent"), latent(2).latent)


def test_a_tar_holds_the_files_themselves(tmp_path: Path) -> None:
    """With names that WebDataset takes for samples."""
    import tarfile

    folder = Folder(Sharding(9, "webdataset").place(tmp_path, 0), tmp_path / "parts")
    written = folder.write("a.png", "b")
    assemble(folder.shard, ["a.png", "b"], folder.parts)
    with tarfile.open(folder.shard) as tar:
        assert tar.getnames() == [
            *("00000000.safetensors", "00000000.json"),
            *("00000001.safetensors", "00000001.json"),
        ]
        opened = tar.extractfile("00000000.safetensors")
        assert opened is not None
        assert opened.read() == written["a.png"]


def test_nonsense_is_refused() -> None:
    """A shard holds something, in a format that is known."""
    with pytest.raises(UsageError, match="--shards `0`"):
        Sharding(0)
    with pytest.raises(UsageError, match="use safetensors or webdataset"):
        Sharding(1, "zip")
