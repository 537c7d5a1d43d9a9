"""`pack` and `unpack`: files and folders, stopped anywhere and gone on with."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.place.packing.files import ODD, checkpoint, contents, damage, model, sharded
from tests.weigh.header_makers import write_safetensors
from tightfit.errors import InputError, UsageError
from tightfit.place.packing import writing
from tightfit.weigh.files.headers import read_header

INDEX = "model.safetensors.index.json"


def pipeline(root: Path) -> Path:
    """Several models, small files, links, an empty folder, weights that are not of our kind."""
    sharded(root / "transformer")
    (root / "vae").mkdir()
    checkpoint(root / "vae" / "diffusion_pytorch_model.safetensors", model("vae"), metadata=ODD)
    (root / "vae" / "again.safetensors").symlink_to("diffusion_pytorch_model.safetensors")
    (root / "empty" / "emptier").mkdir(parents=True)
    (root / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    (root / "old.ckpt").write_bytes(os.urandom(1000))
    (root / ".hidden").write_bytes(b"")
    return root


def test_a_folder_comes_back_file_by_file(tmp_path: Path) -> None:
    """Shards, index, other files, links within, empty folders: all bytes are the same."""
    source = pipeline(tmp_path / "model")
    done = tightfit.pack(source, tmp_path / "packed")
    back = tightfit.unpack(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(source)
    assert (len(done.parts), done.packed, done.raw, done.copied) == (4, 7, 7, 4)
    assert (done.before_bytes, done.after_bytes) == (back.after_bytes, back.before_bytes)
    for folder, size in ((source, done.before_bytes), (tmp_path / "packed", done.after_bytes)):
        files = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
        assert sum(each.stat().st_size for each in files) == size
    assert {each.name for each in tmp_path.iterdir()} == {"model", "packed", "again"}


def test_a_packed_model_is_weighed_as_what_it_is(tmp_path: Path) -> None:
    """Shapes, types, elements and metadata of the original; the bytes that it takes now."""
    source = sharded(tmp_path / "model")
    tightfit.pack(source, tmp_path / "packed")
    before, after = read_header(source), read_header(tmp_path / "packed")
    assert [(t.name, t.dtype, t.shape, t.elements) for t in before.tensors] == [
        (t.name, t.dtype, t.shape, t.elements) for t in after.tensors
    ]
    assert after.metadata == before.metadata
    assert 0.7 < after.weight_bytes / before.weight_bytes < 0.8
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert new.packed == (new.dtype == "BF16")
        assert old.converted("bfloat16") == (0 if new.packed else new.elements * 2)
        assert new.converted("bfloat16") == new.elements * 2


def test_the_index_tells_the_true_total(tmp_path: Path) -> None:
    """Of the packed bytes; what else it held is there, and the old one comes back as it was."""
    source = sharded(tmp_path / "model")
    tightfit.pack(source, tmp_path / "packed")
    index = json.loads((tmp_path / "packed" / INDEX).read_bytes())
    assert index["weight_map"] == json.loads((source / INDEX).read_bytes())["weight_map"]
    assert index["metadata"]["kept"] == [1, 2]
    assert index["metadata"]["total_size"] == read_header(tmp_path / "packed").weight_bytes


def test_a_diffusers_model_and_its_file_come_back(tmp_path: Path) -> None:
    """A small FLUX transformer as diffusers saves it, in shards."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    flux = FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=8,
        joint_attention_dim=64,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    flux.to(torch.bfloat16).save_pretrained(tmp_path / "flux", max_shard_size="600KB")
    assert len(list((tmp_path / "flux").glob("*.safetensors"))) > 1
    done = tightfit.pack(tmp_path / "flux", tmp_path / "packed")
    assert done.packed > 10
    assert done.after_bytes < 0.8 * done.before_bytes
    tightfit.unpack(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "flux")


def test_a_file_comes_back_and_old_ones_are_replaced(tmp_path: Path) -> None:
    """By a file; what lay under the name before is gone only then."""
    source = checkpoint(tmp_path / "m.safetensors", model("a"), metadata=ODD)
    packed, again = tmp_path / "p.safetensors", tmp_path / "u.safetensors"
    packed.write_bytes(b"old")
    again.write_bytes(b"old")
    done = tightfit.pack(source, packed)
    tightfit.unpack(str(packed), str(again))
    assert again.read_bytes() == source.read_bytes()
    assert done.ratio == packed.stat().st_size / source.stat().st_size
    assert len(list(tmp_path.iterdir())) == 3


def test_progress_counts_bytes_up_to_all_of_them(tmp_path: Path) -> None:
    """It never falls and ends at the total, also where files were there already."""
    source = pipeline(tmp_path / "model")
    told: list[tuple[str, int, int]] = []

    def watch(name: str, done: int, total: int) -> None:
        told.append((name, done, total))

    for _ in range(2):
        told.clear()
        tightfit.pack(source, tmp_path / "packed", progress=watch)
        done = [each[1] for each in told]
        assert done == sorted(done)
        assert len({each[2] for each in told}) == 1
        assert done[-1] == told[-1][2]


class Stop(Exception):
    """Comes from nowhere."""


def break_at(monkeypatch: pytest.MonkeyPatch, count: int, error: BaseException) -> None:
    """The write of a tensor with that number fails, counted from 0."""
    write = writing._write
    left = [count]

    def failing(out: Any, own: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] < 0:
            out.write(b"half")
            raise error
        write(out, own)

    monkeypatch.setattr(writing, "_write", failing)


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("work", [tightfit.pack, tightfit.unpack], ids=["pack", "unpack"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [(full(), InputError), (KeyboardInterrupt(), KeyboardInterrupt), (Stop(), Stop)],
    ids=["full", "interrupt", "other"],
)
def test_stopped_at_any_write_it_goes_on(
    work: Callable[..., tightfit.api.packing.packing.PackSummary],
    error: BaseException,
    seen: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is under the name, whole files are kept beside it, and the next run ends it."""
    source, other = sharded(tmp_path / "model"), tmp_path / "other"
    tightfit.pack(source, other)
    expected = contents(other) if work is tightfit.pack else contents(source)
    given = source if work is tightfit.pack else other
    out = tmp_path / "out"
    hidden = tmp_path / (".out.packing" if work is tightfit.pack else ".out.unpacking")
    for at in range(12):
        with monkeypatch.context() as patch:
            break_at(patch, at, error)
            with pytest.raises(seen):
                work(given, out)
        assert not out.exists()
        kept = contents(hidden)
        assert kept.items() <= expected.items()
        done = work(given, out)
        assert sum(part.kept for part in done.parts) == sum(
            name.endswith(".safetensors") for name in kept
        )
        assert contents(out) == expected
        assert not hidden.exists()
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


def test_a_full_disk_is_said_with_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence on the disk, one on going on; of one file alone, nothing stays."""
    source = sharded(tmp_path / "model")
    break_at(monkeypatch, 5, full())
    with pytest.raises(InputError, match=r"the disk is full.*2 of 5 files are done and kept in"):
        tightfit.pack(source, tmp_path / "out")
    alone = checkpoint(tmp_path / "m.safetensors", model("a", "b"))
    (tmp_path / "p.safetensors").write_bytes(b"old")
    before = set(tmp_path.iterdir())
    break_at(monkeypatch, 1, full())
    with pytest.raises(InputError, match="the disk is full"):
        tightfit.pack(alone, tmp_path / "p.safetensors")
    assert set(tmp_path.iterdir()) == before
    assert (tmp_path / "p.safetensors").read_bytes() == b"old"


def test_a_killed_process_leaves_what_the_next_one_goes_on_from(tmp_path: Path) -> None:
    """No half file under any name but a hidden one, which goes with the next run."""
    source = sharded(tmp_path / "model")
    program = (
        "import os, sys, time, tightfit\n"
        "from tightfit.place.packing import writing\n"
        "write, left = writing._write, [5]\n"
        "def slow(out, own):\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        out.write(b'half'); out.flush(); print('now', flush=True); time.sleep(60)\n"
        "    write(out, own)\n"
        "writing._write = slow\n"
        "tightfit.pack(*sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        with pytest.raises(InputError, match="another process"):
            tightfit.pack(source, tmp_path / "out")
        process.send_signal(signal.SIGKILL)
    kept = contents(tmp_path / ".out.packing")
    assert any(".part" in name for name in kept)
    assert not (tmp_path / "out").exists()
    done = tightfit.pack(source, tmp_path / "out")
    assert [part.kept for part in done.parts] == [True, False, False]
    assert {name for name in kept if ".part" not in name} <= set(contents(tmp_path / "out"))
    assert set(contents(tmp_path / "out")) == set(contents(source))


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    """A whole folder, a whole file; one damaged byte, and that file is written anew."""
    source = sharded(tmp_path / "model")
    out = tmp_path / "out"
    tightfit.pack(source, out)
    expected = contents(out)
    shards = sorted(out.glob("*.safetensors"))
    before = [each.stat().st_ino for each in shards]
    assert all(part.kept for part in tightfit.pack(source, out).parts)
    assert [each.stat().st_ino for each in shards] == before
    damage(shards[1], shards[1].stat().st_size - 1)
    assert [part.kept for part in tightfit.pack(source, out).parts] == [True, False, True]
    assert contents(out) == expected
    one, packed = shards[0].name, tmp_path / "one.safetensors"
    assert not tightfit.pack(source / one, packed).parts[0].kept
    assert tightfit.pack(source / one, packed).parts[0].kept


def test_what_another_model_left_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Same names, same shapes, other values: nothing of it is kept."""
    one = checkpoint(tmp_path / "m.safetensors", model("a"))
    packed = tmp_path / "p.safetensors"
    tightfit.pack(one, packed)
    damage(one, one.stat().st_size - 40)
    assert not tightfit.pack(one, packed).parts[0].kept
    tightfit.unpack(packed, tmp_path / "u.safetensors")
    assert (tmp_path / "u.safetensors").read_bytes() == one.read_bytes()


def test_a_damaged_shard_stops_unpacking_by_the_name_of_its_tensor(tmp_path: Path) -> None:
    """Nothing comes under the name."""
    source = sharded(tmp_path / "model")
    tightfit.pack(source, tmp_path / "packed")
    shard = sorted((tmp_path / "packed").glob("*.safetensors"))[2]
    damage(shard, shard.stat().st_size - 1)
    with pytest.raises(InputError, match=r"00003-of-00003.*`layers\.3\.down\.bias` is damaged"):
        tightfit.unpack(tmp_path / "packed", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "out", "word"),
    [
        ("m.safetensors", "m.safetensors", "input and the output"),
        ("m.safetensors", "link.safetensors", "input and the output"),
        ("m.safetensors", "folder", "must end in .safetensors"),
        ("m.safetensors", "m2.bin", "must end in .safetensors"),
        ("m.safetensors", "no/where.safetensors", "does not exist"),
        ("p.safetensors", "q.safetensors", "packed already"),
        ("folder", "folder", "input and the output"),
        ("folder", "folder/out", "lies in"),
        ("folder/in", "folder", "holds"),
        ("folder", "m.safetensors", "a file is in the way"),
        ("folder", "other", "`precious.txt`"),
        ("folder", "no/where", "does not exist"),
        ("other", "out", "no .safetensors file"),
        (f"folder/{INDEX}", "out", "give the folder"),
        ("cut.safetensors", "out.safetensors", "Cannot pack .*cut off"),
        ("text.safetensors", "out.safetensors", "no safetensors file"),
        ("pointer.safetensors", "out.safetensors", "git lfs pull"),
        ("model.gguf", "out.gguf", "quantised already"),
        ("model.ckpt", "out.safetensors", "pickle"),
        ("nothing", "out", "no such file"),
        ("random:flux.1-dev", "out", "no file"),
        ("mini:wan2.1-vae", "out", "no file"),
        ("", "out", "takes what"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    source: str, out: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is written, with what is wrong."""
    monkeypatch.chdir(tmp_path)
    one = checkpoint(Path("m.safetensors"), model("a"))
    Path("link.safetensors").symlink_to("m.safetensors")
    sharded(Path("folder"))
    sharded(Path("folder/in"))
    Path("other").mkdir()
    Path("other/precious.txt").write_text("x")
    Path("cut.safetensors").write_bytes(one.read_bytes()[:-5])
    Path("text.safetensors").write_text("hello, this is a text")
    Path("pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    Path("model.gguf").write_bytes(b"GGUF" + bytes(100))
    Path("model.ckpt").write_bytes(b"PK\x03\x04")
    tightfit.pack(one, "p.safetensors")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"(?s){word}"):
        tightfit.pack(source, out)
    assert contents(tmp_path) == before


def test_what_is_not_packed_is_not_unpacked(tmp_path: Path) -> None:
    """A file, a folder; and in a folder in which something is packed, the rest comes along."""
    source = sharded(tmp_path / "model")
    one = checkpoint(tmp_path / "m.safetensors", model("a"))
    for given, out in ((one, "out.safetensors"), (source, "out")):
        with pytest.raises(InputError, match="did not write it"):
            tightfit.unpack(given, tmp_path / out)
    tightfit.pack(source, tmp_path / "packed")
    plain = tmp_path / "packed" / "plain.safetensors"
    plain.write_bytes(one.read_bytes())
    assert tightfit.unpack(tmp_path / "packed", tmp_path / "again").copied == 2
    assert (tmp_path / "again" / "plain.safetensors").read_bytes() == one.read_bytes()


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    """An index that names a shard which is not there, or is none."""
    source = sharded(tmp_path / "model")
    index = source / INDEX
    text = index.read_bytes()
    for bad in (b"[]", b"no json", b'{"weight_map": {"a": "../m.safetensors"}}'):
        index.write_bytes(bad)
        with pytest.raises(InputError, match=r"index\.json"):
            tightfit.pack(source, tmp_path / "out")
    index.write_bytes(text)
    (source / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match="00002-of-00003"):
        tightfit.pack(source, tmp_path / "out")
    assert set(tmp_path.iterdir()) == {source}


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    """By name, to files and to folders; but the blobs of a hub's cache are where its files are."""
    outside = checkpoint(tmp_path / "outside.safetensors", model("a"))
    for goal in (outside, tmp_path, Path("gone")):
        source = sharded(tmp_path / "model")
        (source / "link").symlink_to(goal)
        with pytest.raises(InputError, match="link"):
            tightfit.pack(source, tmp_path / "out")
        (source / "link").unlink()
    hub = tmp_path / "models--someone--something"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "main").mkdir(parents=True)
    (hub / "blobs" / "0f").write_bytes(outside.read_bytes())
    (hub / "snapshots" / "main" / "model.safetensors").symlink_to("../../blobs/0f")
    tightfit.pack(hub / "snapshots" / "main", tmp_path / "packed")
    tightfit.unpack(tmp_path / "packed", tmp_path / "again")
    assert contents(tmp_path / "again") == {"model.safetensors": outside.read_bytes()}


def test_a_header_that_would_grow_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the figures: readers refuse a header of more than 100 MB."""
    source = write_safetensors(
        tmp_path / "m.safetensors", {f"t{i}": ("F32", (1,)) for i in range(9)}
    )
    monkeypatch.setattr(writing, "LONGEST", 2000)
    with pytest.raises(InputError, match="2,000 are the limit"):
        tightfit.pack(source, tmp_path / "p.safetensors")
    assert set(tmp_path.iterdir()) == {source}


def test_ten_thousand_tensors_cost_a_few_hundred_bytes_each(tmp_path: Path) -> None:
    """What a packed file says of itself stays small beside what it holds."""
    shapes = {f"blocks.{i}.attention.to_q.weight": ("F32", (1,)) for i in range(10_000)}
    source = write_safetensors(tmp_path / "m.safetensors", shapes)
    done = tightfit.pack(source, tmp_path / "p.safetensors")
    assert done.after_bytes - done.before_bytes < 500 * 10_000
    assert read_header(tmp_path / "p.safetensors").weight_bytes == 40_000


def test_summaries_are_json(tmp_path: Path) -> None:
    """Whole numbers of bytes, file by file."""
    source = sharded(tmp_path / "model")
    found = json.loads(json.dumps(tightfit.pack(source, tmp_path / "out").as_dict()))
    assert found["tensors"] == {"packed": 6, "raw": 6}
    assert [each["kept"] for each in found["files"]] == [False] * 3
    assert found["after_bytes"] / found["before_bytes"] == pytest.approx(found["ratio"], abs=1e-5)
