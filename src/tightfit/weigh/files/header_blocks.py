"""The blocks of a model of which only a header was read, by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tightfit.weigh.blocks import Block, Leaf, Weights
from tightfit.weigh.files.parts import without_prefix
from tightfit.weigh.files.quantised import module_of
from tightfit.weigh.files.recognise import recognise, speaks
from tightfit.weigh.files.tensor_header import Header, TensorHeader

_NUMBER = re.compile(r"\d+")
_FALLING = "#"
_OUTPUTS = re.compile(
    r"(^|\.)(norm_out|proj_out|conv_norm_out|conv_out|final_layer|final_layer_norm|final_norm|"
    r"norm_final|norm|ln_f|ln_final|head|lm_head|out|output|output_norm|text_projection)$"
)
"""Last words of what runs behind all blocks, in architectures that are not known here."""
_EARLY = re.compile(r"(^|[._])(down|input|double|encoder)(_|\.|$)|refiner")
_LATE = re.compile(r"(^|[._])(up|output|single|decoder)(_|\.|$)")


def blocks_of_header(header: Header, compute_dtype: str) -> Weights:
    """What the model of `header` weighs, in blocks as they move.

    The outermost numbered part of a name makes the block (``transformer_blocks.7``), unless some
    of the numbered own their tensors themselves, as steps of a sequence do (``time_embed.0``). The
    rest is grouped by what stands before the first dot, or before a later one where blocks share
    the beginning (``encoder.conv_in``). Prefixes that all names share are left out.

    Args:
        header: of one model; `parts_of_header` takes a bundle apart.
        compute_dtype: ``bfloat16``, ``float16`` or ``float32``: what copies are converted to.

    The order is the one in which the architecture runs where its naming is known; otherwise as in
    the file, with numbers counted up, and what is called like an output behind the blocks.
    """
    header = without_prefix(header)
    known = recognise(header)
    owners = _owners(header)
    homes = _homes(owners)
    members: dict[str, list[str]] = {}
    for owner in owners:
        members.setdefault(homes[owner], []).append(owner)
    blocks = tuple(
        Block(name, tuple(_leaf(owner, owners[owner], compute_dtype) for owner in members[name]))
        for name in _in_order(header, list(members))
    )
    name = known.name if known else header.class_name or header.path.stem
    return Weights(name, blocks, "keys")


def _owners(header: Header) -> dict[str, list[TensorHeader]]:
    """The tensors of each module, modules in the order of the file."""
    owners: dict[str, list[TensorHeader]] = {}
    for tensor in header.tensors:
        owners.setdefault(module_of(tensor.name, names=header.by_name), []).append(tensor)
    return owners


def _leaf(name: str, tensors: list[TensorHeader], compute_dtype: str) -> Leaf:
    return Leaf(
        name,
        stored_bytes=sum(tensor.stored_bytes for tensor in tensors),
        converted_bytes=sum(tensor.converted(compute_dtype) for tensor in tensors),
        largest_bytes=max(tensor.stored_bytes for tensor in tensors),
        elements=sum(tensor.elements for tensor in tensors),
    )


def _homes(owners: Iterable[str]) -> dict[str, str]:
    """The block of each module."""
    paths = {owner: owner.split(".") for owner in owners}
    lists = _lists(paths.values())
    numbered = {owner: _numbered(path, lists) for owner, path in paths.items()}
    shared = {
        tuple(path[:end])
        for path, length in ((paths[owner], length) for owner, length in numbered.items())
        for end in range(1, length)
    }
    return {
        owner: ".".join(path[: numbered[owner] or _leading(path, shared)])
        for owner, path in paths.items()
    }


def _lists(paths: Iterable[list[str]]) -> set[tuple[str, ...]]:
    """Containers with numbered members, all of which have modules inside."""
    with_modules: set[tuple[str, ...]] = set()
    of_modules: set[tuple[str, ...]] = set()
    for path in paths:
        for at, word in enumerate(path):
            if _NUMBER.fullmatch(word):
                (with_modules if at + 1 < len(path) else of_modules).add(tuple(path[: at + 1]))
    return {member[:-1] for member in with_modules} - {
        member[:-1] for member in of_modules - with_modules
    }


def _numbered(path: list[str], lists: set[tuple[str, ...]]) -> int:
    """How many words of `path` name its outermost numbered part; 0 where none is."""
    for at, word in enumerate(path):
        if _NUMBER.fullmatch(word) and tuple(path[:at]) in lists:
            return at + 1
    return 0


def _leading(path: list[str], shared: set[tuple[str, ...]]) -> int:
    """How many words of `path` it takes to stand outside all blocks."""
    return next((end for end in range(1, len(path)) if tuple(path[:end]) not in shared), len(path))


def _in_order(header: Header, names: list[str]) -> list[str]:
    found = speaks(header)
    if found is None:
        seen = {name: position for position, name in enumerate(names)}
        first: dict[str, int] = {}
        for name in names:
            first.setdefault(_container(name), seen[name])
        return sorted(names, key=lambda n: (_stage(n), first[_container(n)], _counted(n)))
    order = {entry.removesuffix(_FALLING): entry for entry in found.naming.order}
    ranks = {entry: rank for rank, entry in enumerate(order)}
    return sorted(names, key=lambda name: _rank(name.removeprefix(found.prefix), order, ranks))


def _rank(
    name: str, order: Mapping[str, str], ranks: Mapping[str, int]
) -> tuple[int, list[tuple[int, str]]]:
    """By the first entry that `name` is, or is inside of; what is in none comes first."""
    for entry, spelled in order.items():
        if name == entry or name.startswith(f"{entry}."):
            return ranks[entry], _counted(name, falling=spelled.endswith(_FALLING))
    return -1, _counted(name)


def _counted(name: str, *, falling: bool = False) -> list[tuple[int, str]]:
    """Sorts like the name, with numbers as numbers."""
    sign = -1 if falling else 1
    return [
        (sign * int(word), "") if _NUMBER.fullmatch(word) else (0, word) for word in name.split(".")
    ]


def _container(name: str) -> str:
    head, _, last = name.rpartition(".")
    return head if _NUMBER.fullmatch(last) else name


def _stage(name: str) -> tuple[int, int]:
    """Before, among or behind the blocks; and which lists of blocks come first."""
    container = _container(name)
    if container == name:
        return (2 if _OUTPUTS.search(name) else 0), 0
    return 1, (0 if _EARLY.search(container) else 2 if _LATE.search(container) else 1)
