"""One packed file: written, opened by anybody, and unpacked to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.place.packing.files import ODD, Tensors, checkpoint, damage, model
from tightfit.errors import InputError, JobFailed
from tightfit.place.packing import writing
from tightfit.place.packing.mapped import mapped
from tightfit.place.packing.packed_file import DTYPES, PackedFile
from tightfit.place.packing.writing import Counts, pack_file, unpack_file
from tightfit.weigh.files.headers import safetensors_layout
from tightfit.weigh.files.safetensors_layout import BITS


def pack(source: Path, target: Path) -> Counts:
    return pack_file(safetensors_layout(source), target, lambda more: None)


def unpack(source: Path, target: Path) -> Counts:
    return unpack_file(PackedFile(source), target, lambda more: None)


def there_and_back(source: Path) -> Counts:
    """Pack and unpack a file; the same bytes have come back."""
    packed, again = source.with_name("packed.safetensors"), source.with_name("again.safetensors")
    done = pack(source, packed)
    assert done.before_bytes == source.stat().st_size
    assert done.after_bytes == packed.stat().st_size
    back = unpack(packed, again)
    assert again.read_bytes() == source.read_bytes()
    assert (back.before_bytes, back.after_bytes) == (done.after_bytes, done.before_bytes)
    assert (back.packed, back.raw) == (done.packed, done.raw)
    return done


def test_trained_weights_take_three_quarters_and_come_back(tmp_path: Path) -> None:
    """The header may have any spaces and any order; the whole file is the same again."""
    source = tmp_path / "model.safetensors"
    tensors = {"w": ("BF16", (1024, 512)), "v": ("BF16", (700, 333))}
    with_spaces = checkpoint(source, tensors, metadata=ODD, indent=3, ensure_ascii=False)
    done = there_and_back(with_spaces)
    assert (done.packed, done.raw) == (2, 0)
    assert done.after_bytes < 0.77 * done.before_bytes


@pytest.mark.parametrize(
    ("tensors", "packed"),
    [
        ({}, 0),
        ({"empty": ("BF16", (0, 4)), "none": ("F32", (0,)), "scalar": ("BF16", ())}, 0),
        ({name: (name, (2, 8)) for name in BITS}, 0),
        ({name: (name, (64, 1024)) for name in BITS}, 1),
        ({"odd": ("U8", (3,)), **model("a"), "odder": ("BOOL", (1,)), **model("b")}, 2),
        ({'"\\\né\u2028': ("BF16", (128, 128)), "": ("BF16", (128, 128))}, 2),
    ],
    ids=["nothing", "empty tensors", "every type", "every type, larger", "odd sizes", "odd names"],
)
@pytest.mark.parametrize("metadata", [None, {}, ODD], ids=["none", "empty", "odd"])
def test_what_is_in_a_file_does_not_matter(
    tensors: Tensors, packed: int, metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    """Every type, zero sizes, odd sizes in between, odd names: the same bytes come back."""
    source = checkpoint(tmp_path / "m.safetensors", tensors, metadata=metadata)
    done = there_and_back(source)
    assert (done.packed, done.raw) == (packed, len(tensors) - packed)


def test_what_does_not_shrink_stays(tmp_path: Path) -> None:
    """bf16 of noise, exponents and all, and bf16 below 16 KiB."""
    noise = torch.randint(0, 2**16, (64, 512), dtype=torch.int32).to(torch.uint16)
    small = torch.randn(8191).bfloat16()
    source = tmp_path / "m.safetensors"
    save_file({"noise": noise.view(torch.bfloat16), "small": small}, source)
    done = there_and_back(source)
    assert (done.packed, done.raw) == (0, 2)


def test_any_reader_opens_it(tmp_path: Path) -> None:
    """The library finds the same names, the old metadata, and raw tensors as they were."""
    source = checkpoint(tmp_path / "m.safetensors", model("a", "b"), metadata=ODD)
    pack(source, tmp_path / "p.safetensors")
    original = load_file(source)
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        assert set(file.keys()) == set(original)
        assert ODD.items() <= file.metadata().items()
        assert torch.equal(
            file.get_tensor("a.bias").view(torch.uint8), original["a.bias"].view(torch.uint8)
        )
        stored = file.get_tensor("a.weight")
    assert (stored.dtype, stored.dim()) == (torch.uint8, 1)
    assert stored.nbytes < original["a.weight"].nbytes


def test_its_tensors_are_there_packed_and_unpacked(tmp_path: Path) -> None:
    """A packed one is mapped at an aligned place; its values are those of the original."""
    tensors = {"odd": ("U8", (3,)), **model("a", "b"), "c": ("F8_E4M3", (5, 5))}
    source = checkpoint(tmp_path / "m.safetensors", tensors)
    pack(source, tmp_path / "p.safetensors")
    file = PackedFile(tmp_path / "p.safetensors")
    original = load_file(source)
    assert list(file) == list(tensors)
    assert (len(file), file.packed) == (6, 2)
    for name in file:
        stored, tensor = file.stored(name), file.tensor(name)
        assert (tensor.shape, tensor.dtype) == (original[name].shape, original[name].dtype)
        assert tensor.numel() == 0 or torch.equal(
            tensor.flatten().view(torch.uint8), original[name].flatten().view(torch.uint8)
        )
        assert (stored.dtype, stored.shape) == tensors[name]
        there = mapped(file.path, stored.offset, stored.offset + stored.stored.nbytes)
        assert torch.equal(there, stored.stored)
        if stored.recipe is not None:
            assert stored.offset % 256 == 0


def test_it_may_be_saved_anew_by_others(tmp_path: Path) -> None:
    """In another order, at other places: with its metadata it unpacks to the same file."""
    source = checkpoint(tmp_path / "m.safetensors", model("b", "a"), metadata=ODD, indent=1)
    pack(source, tmp_path / "p.safetensors")
    with safe_open(tmp_path / "p.safetensors", "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys(), reverse=True)}
    save_file(tensors, tmp_path / "q.safetensors", metadata)
    unpack(tmp_path / "q.safetensors", tmp_path / "u.safetensors")
    assert (tmp_path / "u.safetensors").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["a.weight", "b.bias"])
def test_a_damaged_tensor_is_named(name: str, tmp_path: Path) -> None:
    """Packed or not: one bit is enough, and nothing wrong is handed out."""
    source = checkpoint(tmp_path / "m.safetensors", model("a", "b"))
    packed = tmp_path / "p.safetensors"
    pack(source, packed)
    stored = PackedFile(packed).stored(name)
    found = 0
    for at in range(0, stored.stored.nbytes, max(stored.stored.nbytes // 7, 1)):
        damage(packed, stored.offset + at)
        file = PackedFile(packed)
        if not torch.equal(file.stored(name).unpacked(), own_bytes(source, name)):
            found += 1
            with pytest.raises(InputError, match=f"`{name}` is damaged"):
                file.unpacked(name)
        damage(packed, stored.offset + at)
    assert found > 4
    unpack(packed, tmp_path / "u.safetensors")


def own_bytes(source: Path, name: str) -> torch.Tensor:
    layout = safetensors_layout(source)
    entry = next(each for each in layout.entries if each.name == name)
    return writing.own_bytes(layout, entry)


def test_what_is_read_back_wrong_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a memory that loses a bit is found out, in either direction."""
    source = checkpoint(tmp_path / "m.safetensors", model("a"))
    packed = tmp_path / "p.safetensors"
    pack(source, packed)
    write = writing._write

    def bad(out: object, own: torch.Tensor) -> None:
        own = own.clone()
        own[len(own) // 3] ^= 1
        write(out, own)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "_write", bad)
    with pytest.raises(JobFailed, match="read back"):
        pack(source, tmp_path / "q.safetensors")
    with pytest.raises(JobFailed, match="read back"):
        unpack(packed, tmp_path / "u.safetensors")


def edited(packed: Path, key: str, value: str | None) -> Path:
    """The file with another text in its metadata, the header padded to the old length."""
    data = packed.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    content = json.loads(data[8:end])
    if value is None:
        del content["__metadata__"][key]
    else:
        content["__metadata__"][key] = value
    text = json.dumps(content, separators=(",", ":")).encode().ljust(end - 8)
    assert len(text) == end - 8
    target = packed.with_name("edited.safetensors")
    target.write_bytes(data[:8] + text + data[end:])
    return target


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("tightfit.packed", "2", "version `2`"),
        ("tightfit.header", None, "not told"),
        ("tightfit.header", "AAAA", "damaged"),
        ("tightfit.header", "é", "damaged"),
        ("tightfit.tensors", None, "damaged"),
        ("tightfit.tensors", "[]", "damaged"),
        ("tightfit.tensors", '{"a.weight": ["00", null]}', "damaged"),
        ("tightfit.tensors", "{}", "not those"),
    ],
)
def test_metadata_that_make_no_sense_are_refused(
    key: str, value: str | None, word: str, tmp_path: Path
) -> None:
    """Before any tensor is read, with what is wrong."""
    packed = tmp_path / "p.safetensors"
    pack(checkpoint(tmp_path / "m.safetensors", model("a")), packed)
    with pytest.raises(InputError, match=word):
        PackedFile(edited(packed, key, value))


@pytest.mark.parametrize("recipe", ["nonsense", None, "values"])
def test_a_recipe_that_makes_no_sense_is_refused(recipe: str | None, tmp_path: Path) -> None:
    """By the name of the tensor: not a recipe, one that is missing, one of another size."""
    packed = tmp_path / "p.safetensors"
    tensors = {"a": ("BF16", (256, 128)), "b": ("BF16", (128, 128))}
    pack(checkpoint(tmp_path / "m.safetensors", tensors), packed)
    with safe_open(packed, "pt") as file:
        told = json.loads(file.metadata()["tightfit.tensors"])
    told["a"][1] = told["b"][1] if recipe == "values" else recipe
    wrong = edited(packed, "tightfit.tensors", json.dumps(told, separators=(",", ":")))
    with pytest.raises(InputError, match="tensor `a`"):
        PackedFile(wrong).tensor("a")


def test_an_ordinary_file_is_not_packed(tmp_path: Path) -> None:
    """Said so, where a packed one is needed."""
    source = checkpoint(tmp_path / "m.safetensors", model("a"))
    with pytest.raises(InputError, match="not packed"):
        PackedFile(source)


def test_types_that_pytorch_lacks_are_given_as_bytes_alone(tmp_path: Path) -> None:
    """Four-bit floats have bytes, and no tensor of values."""
    source = checkpoint(tmp_path / "m.safetensors", {"x": ("F4", (4, 8))})
    pack(source, tmp_path / "p.safetensors")
    file = PackedFile(tmp_path / "p.safetensors")
    assert "F4" not in DTYPES
    assert torch.equal(file.unpacked("x"), own_bytes(source, "x"))
    with pytest.raises(InputError, match="F4"):
        file.tensor("x")


def test_mapped_bytes_are_those_of_the_file_and_stay_so(tmp_path: Path) -> None:
    """At any place; writing to them changes no file; beyond the end there are none."""
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 40)
    for begin, end in ((0, 1), (5, 5), (4095, 4097), (10_000, 10_240)):
        found = mapped(path, begin, end)
        assert bytes(found.tolist()) == path.read_bytes()[begin:end]
        found.fill_(0)
    assert path.read_bytes() == bytes(range(256)) * 40
    with pytest.raises(ValueError, match="length"):
        mapped(path, 0, 10_241)
