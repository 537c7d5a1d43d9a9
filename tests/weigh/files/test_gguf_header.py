"""Headers of GGUF: versions, alignment, metadata of any length, block types, damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weigh.header_makers import LIST, TEXT, U32, Gguf, text
from tightfit.errors import InputError
from tightfit.weigh.files.ggml_types import BLOCK_TYPES
from tightfit.weigh.files.header_blocks import blocks_of_header
from tightfit.weigh.files.headers import read_header


def refusal(path: Path) -> str:
    """Why `path` is refused; every refusal names the path."""
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def small(*, version: int = 3, alignment: int = 32) -> Gguf:
    """A file with each kind of metadata and three tensors, two of them not of whole paddings."""
    made = Gguf(version=version, alignment=alignment)
    made.entry("general.architecture", TEXT, text("flux"))
    if alignment != 32:
        made.entry("general.alignment", U32, struct.pack("<I", alignment))
    made.entry("an.integer", 5, struct.pack("<i", -7))
    made.entry("a.flag", 7, b"\1")
    made.entry("a.number", 12, struct.pack("<d", 0.5))
    made.entry("words", LIST, struct.pack("<IQ", TEXT, 3) + text("a") + text("") + text("ü" * 9))
    made.entry("numbers", LIST, struct.pack("<IQ3H", 2, 3, 1, 2, 3))
    made.entry("many", LIST, struct.pack("<IQ", 0, 17) + bytes(17))
    inner = struct.pack("<IQ", TEXT, 1) + text("x")
    made.entry("lists", LIST, struct.pack("<IQ", LIST, 2) + inner + inner)
    made.tensor("a.weight", (3, 256), "Q4_K")
    made.tensor("a.bias", (3,), "F32")
    made.tensor("b.weight", (5, 7), "F16")
    return made


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 32, 64, 4096])
def test_a_file_is_read_in_both_versions_and_at_any_alignment(
    tmp_path: Path, version: int, alignment: int
) -> None:
    """Names, shapes as PyTorch says them, types, bytes, and the metadata that is not too long."""
    made = small(version=version, alignment=alignment)
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert header.format == "gguf"
    assert [(t.name, t.shape, t.dtype, t.stored_bytes, t.elements) for t in header.tensors] == [
        ("a.weight", (3, 256), "Q4_K", 3 * 144, 768),
        ("a.bias", (3,), "F32", 12, 3),
        ("b.weight", (5, 7), "F16", 70, 35),
    ]
    expected = {
        "general.architecture": "flux",
        "an.integer": "-7",
        "a.flag": "True",
        "a.number": "0.5",
        "numbers": "1,2,3",
    }
    if alignment != 32:
        expected["general.alignment"] = str(alignment)
    assert header.metadata == expected


@pytest.mark.parametrize("kind", BLOCK_TYPES.values(), ids=lambda kind: kind.name)
def test_a_block_type_takes_as_much_as_its_bits_and_scales(tmp_path: Path, kind: object) -> None:
    """Between one bit and 64 bits a value, and never less than its name says."""
    number = next(n for n, known in BLOCK_TYPES.items() if known is kind)
    known = BLOCK_TYPES[number]
    digits = "".join(c for c in known.name.partition("_")[0] if c.isdigit())
    assert known.size * 8 / known.values >= int(digits)
    made = Gguf()
    made.tensor("a", (2, known.values), number)
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert header.weight_bytes == 2 * known.size


def test_q12_planned_bytes_are_the_packed_ones_and_one_converted_tensor(tmp_path: Path) -> None:
    """Q8_0 [64,96], F16 [100,37] and Q4_0 [32,64], computed in float16."""
    made = Gguf()
    made.tensor("eight.weight", (64, 96), "Q8_0")
    made.tensor("half.weight", (100, 37), "F16")
    made.tensor("four.weight", (32, 64), "Q4_0")
    weights = blocks_of_header(read_header(made.write(tmp_path / "model.gguf")), "float16")
    assert weights.stored_bytes == 64 * 96 // 32 * 34 + 100 * 37 * 2 + 32 * 64 // 32 * 18
    assert weights.converted_bytes == 64 * 96 * 2
    assert {block.name: block.converted_bytes for block in weights.blocks} == {
        "eight": 64 * 96 * 2,
        "half": 0,
        "four": 32 * 64 * 2,
    }


def test_q12_a_block_type_that_is_not_known_is_named_before_all_else(tmp_path: Path) -> None:
    """Though the file is cut off as well, and its rows are no whole blocks."""
    made = Gguf()
    made.tensor("known", (3, 5), "Q4_K")
    made.tensor("strange", (64, 64), 77)
    made.tensor("withdrawn", (64, 64), 31)
    message = refusal(made.write(tmp_path / "model.gguf", more=-1))
    assert "77 (of tensor `strange`)" in message
    assert "31 (of tensor `withdrawn`)" in message


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    """With the tensor, its rows, and the block it would need."""
    made = Gguf()
    made.tensor("odd", (4, 100), "Q8_0")
    message = refusal(made.write(tmp_path / "model.gguf"))
    assert "rows of 100" in message
    assert "32 (Q8_0)" in message


@pytest.mark.parametrize("more", [-1, -70, -500])
def test_f03_a_file_cut_in_its_tensors_is_refused_with_both_sizes(
    tmp_path: Path, more: int
) -> None:
    """Where they should end, and how long the file is."""
    made = small(alignment=1)
    path = made.write(tmp_path / "model.gguf", more=more)
    message = refusal(path)
    assert f"{path.stat().st_size - more:,}" in message
    assert f"{path.stat().st_size:,}" in message


def test_f03_padding_may_be_there_or_not_but_nothing_more(tmp_path: Path) -> None:
    """Some writers pad the last tensor; trailing bytes are refused, with both sizes."""
    made = small()
    assert made.offset % 32 == 0
    unpadded = 70 - 96
    for more in (0, unpadded):
        assert read_header(made.write(tmp_path / "model.gguf", more=more)).weight_bytes == 514
    assert "cut off" in refusal(made.write(tmp_path / "model.gguf", more=unpadded - 1))
    assert "512 bytes more" in refusal(made.write(tmp_path / "model.gguf", more=512))


@pytest.mark.parametrize(
    ("offset", "reason"), [(32, "overlaps"), (0, "overlaps"), (960, "behind a hole")]
)
def test_f03_tensors_that_overlap_or_leave_holes_are_refused(
    tmp_path: Path, offset: int, reason: str
) -> None:
    """As in ggml's own reader: each begins where the padding of the last ends."""
    made = Gguf()
    made.tensor("a", (200,), "F32")
    made.tensor("b", (200,), "F16", offset=offset)
    message = refusal(made.write(tmp_path / "model.gguf"))
    assert f"`b` {reason}" in message or f"`b` lies {reason}" in message


def test_two_names_of_the_same_bytes_count_once(tmp_path: Path) -> None:
    """Where place, type and size are the same."""
    made = Gguf()
    made.tensor("token_embd.weight", (8, 32), "Q8_0")
    made.tensor("output.weight", (8, 32), "Q8_0", offset=0)
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert header.weight_bytes == 8 * 34
    assert dict(header.ties) == {"output.weight": "token_embd.weight"}


def test_a_flattened_tensor_has_the_shape_it_had_before(tmp_path: Path) -> None:
    """Converters note it; what does not add up is not believed."""
    made = Gguf()
    for name, axes in (("a", (320, 4, 3, 3)), ("b", (1, 2, 3))):
        value = struct.pack(f"<IQ{len(axes)}i", 5, len(axes), *axes)
        made.entry(f"comfy.gguf.orig_shape.{name}", LIST, value)
        made.tensor(name, (45, 256), "Q4_K")
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert header.by_name["a"].shape == (320, 4, 3, 3)
    assert header.by_name["b"].shape == (45, 256)


def test_five_axes_and_none_are_read(tmp_path: Path) -> None:
    """Video models have patches of five; a scalar has none; integers hold no weights."""
    made = Gguf()
    made.tensor("patch", (16, 4, 1, 2, 2), "F16")
    made.tensor("scalar", (), "F32")
    made.tensor("steps", (3,), "I32")
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert [t.elements for t in header.tensors] == [256, 1, 0]
    made.tensor("tower", (1,) * 9, "F32")
    assert "9 axes" in refusal(made.write(tmp_path / "model.gguf"))


def test_a_vocabulary_of_any_length_is_skipped(tmp_path: Path) -> None:
    """Across all the chunks it is read in, texts longer than a chunk among them."""
    made = Gguf()
    words = b"".join(text("w" * (n % 23)) for n in range(50_000)) + text("long" * 50_000)
    made.entry("tokenizer.ggml.tokens", LIST, struct.pack("<IQ", TEXT, 50_001) + words)
    made.entry("tokenizer.ggml.scores", LIST, struct.pack("<IQ", 6, 50_000) + bytes(200_000))
    made.entry("after", TEXT, text("here"))
    made.tensor("a", (4,), "F32")
    header = read_header(made.write(tmp_path / "model.gguf"))
    assert header.metadata == {"after": "here"}
    assert header.weight_bytes == 16


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<IQQ", 1, 0, 0), "version 1;"),
        (struct.pack("<IQQ", 4, 0, 0), "version 4;"),
        (struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (struct.pack("<IQQ", 3, 2**60, 0), "tensors"),
        (struct.pack("<IQQ", 3, 0, 2**63), "metadata entries"),
        (struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(64), "text"),
        (struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99) + bytes(9), "type 99"),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", LIST)
            + struct.pack("<IQ", LIST, 1) * 9 + bytes(64),
            "lists within lists",
        ),
        (
            struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", LIST, 10, 2**61),
            "cut off in its header",
        ),
    ],
)  # fmt: skip
def test_f03_a_head_that_cannot_be_is_refused(tmp_path: Path, head: bytes, reason: str) -> None:
    """Other versions, the other byte order, numbers that no file has, unknown types."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + head)
    assert reason in refusal(path)


@pytest.mark.parametrize("value", [0, 3, 48, -32])
def test_f03_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, value: int) -> None:
    """It would misplace every tensor."""
    made = Gguf()
    made.entry("general.alignment", 5, struct.pack("<i", value))
    made.tensor("a", (4,), "F32")
    assert "no power of two" in refusal(made.write(tmp_path / "model.gguf"))


def test_f03_a_tensor_listed_twice_is_refused(tmp_path: Path) -> None:
    """One name, two places."""
    made = Gguf()
    made.tensor("a", (8,), "F32")
    made.tensor("a", (8,), "F32")
    assert "`a` is listed twice" in refusal(made.write(tmp_path / "model.gguf"))


def test_f03_a_head_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """At every byte of it."""
    head = small().head()
    path = tmp_path / "model.gguf"
    for length in range(4, len(head)):
        path.write_bytes(head[:length])
        refusal(path)


@given(place=st.integers(4, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    """No other error comes out of a damaged head."""
    data = bytearray(small().head())
    data[4 + place % (len(data) - 4)] = value
    path = tmp_path_factory.mktemp("any") / "any.gguf"
    path.write_bytes(bytes(data) + bytes(small().offset))
    try:
        header = read_header(path)
    except InputError:
        return
    assert header.weight_bytes <= path.stat().st_size
