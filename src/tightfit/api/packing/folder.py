"""A folder of weights, packed or unpacked file by file, with everything else that lies in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tightfit.api.packing.progress import Progress
from tightfit.api.packing.stage import Stage, copied
from tightfit.api.packing.tree import Tree, read_tree
from tightfit.api.packing.ways import Opened, Part, Way
from tightfit.errors import InputError, JobFailed
from tightfit.weigh.files.safetensors_layout import read_layout

_FILE = ".safetensors"
_INDEX = ".safetensors.index."


@dataclass(frozen=True)
class Converted:
    """What became of a folder.

    Attributes:
        parts: its safetensors files.
        copied: how many others went with them as they were.
        before_bytes, after_bytes: of all files.
    """

    parts: tuple[Part, ...]
    copied: int
    before_bytes: int
    after_bytes: int


def convert_folder(way: Way, source: Path, out: Path, progress: Progress) -> Converted:
    """Write the folder `source` in its other form to `out`; see `tightfit.pack`."""
    tree = read_tree(source)
    opened = {
        name: each
        for name in tree.files
        if name.name.endswith(_FILE) and (each := way.open(tree.root / name)) is not None
    }
    if not opened:
        raise InputError(way.nothing(source))
    indexes = {name: _shards(tree, name) for name in tree.files if _is_index(name)}
    others = [name for name in tree.files if name not in opened and name not in indexes]
    goal = _checked(out, tree)
    sizes = {name: (tree.root / name).stat().st_size for name in tree.files}
    progress.expect(
        sum(each.work_bytes for each in opened.values()) + sum(sizes[name] for name in others)
    )
    with Stage(goal, way.doing, tree.names) as stage, _kept_is_said(stage, len(tree.files)):
        for name in tree.folders:
            (stage.folder / name).mkdir(exist_ok=True)
        written = _copy(tree, others, sizes, stage, progress)
        parts = _convert(opened, stage, progress)
        written += sum(part.after_bytes for part in parts)
        for name, shards in indexes.items():
            written += _write_index(way, tree, name, shards, stage)
        for name, text in tree.links.items():
            stage.link(name, text)
        stage.finish()
    return Converted(tuple(parts), len(others), sum(sizes.values()), written)


def _convert(opened: Mapping[Path, Opened], stage: Stage, progress: Progress) -> list[Part]:
    parts = []
    for name, each in opened.items():
        with progress.on(str(name), each.work_bytes) as tell:
            counts, kept = stage.make(
                name,
                partial(each.finished, tell=tell),
                partial(each.write, tell=tell),
            )
        parts.append(Part(str(name), counts, kept))
    return parts


def _copy(
    tree: Tree, names: list[Path], sizes: Mapping[Path, int], stage: Stage, progress: Progress
) -> int:
    """Bytes of the files that go along as they are."""
    total = 0
    for name in names:
        with progress.on(str(name), sizes[name]):
            size, _ = stage.make(name, *copied(tree.root / name))
        total += size
    return total


def _write_index(way: Way, tree: Tree, name: Path, shards: frozenset[str], stage: Stage) -> int:
    folder = (stage.folder / name).parent
    total = sum(read_layout(folder / shard).data_bytes for shard in shards)
    text = way.index(tree.root / name, (tree.root / name).read_bytes(), total)

    def write(part: Path) -> int:
        return part.write_bytes(text)

    def finished(held: Path) -> int | None:
        return len(text) if held.read_bytes() == text else None

    size, _ = stage.make(name, finished, write)
    return size


def _is_index(name: Path) -> bool:
    return _INDEX in name.name and name.suffix == ".json"


def _shards(tree: Tree, name: Path) -> frozenset[str]:
    """The files beside the index `name` that it names. Raises `InputError` where one is not."""
    path = tree.root / name
    try:
        places = json.loads(path.read_bytes())["weight_map"]
        shards = frozenset(places.values())
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise InputError(
            f"Cannot read {path}: it has no `weight_map` from tensors to files."
        ) from None
    held = {*tree.files, *tree.links}
    for shard in sorted(map(str, shards)):
        if Path(shard).name != shard or name.with_name(shard) not in held:
            raise InputError(f"Cannot read {path}: it names {shard}, which is not beside it.")
    return shards


def _checked(out: Path, tree: Tree) -> Path:
    """Where `out` really is. Raises `InputError` where it holds what would be lost."""
    goal = out.resolve()
    if not goal.parent.is_dir():
        raise InputError(
            f"Cannot write {out}: the folder {goal.parent} does not exist; make it first."
        )
    if goal.is_dir():
        for path in goal.rglob("*"):
            if path.relative_to(goal) not in tree.names:
                raise InputError(
                    f"Cannot replace the folder {out}: it holds `{path.relative_to(goal)}`, which "
                    "the input does not; give a new or empty folder."
                )
    return goal


@contextmanager
def _kept_is_said(stage: Stage, files: int) -> Iterator[None]:
    """Add to what stops the work that it can be gone on with."""
    try:
        yield
    except (InputError, JobFailed, KeyboardInterrupt) as error:
        if not stage.done:
            raise
        kept = (
            f"{stage.done} of {files} files are done and kept in {stage.folder}: "
            "the same command goes on from there."
        )
        if isinstance(error, KeyboardInterrupt):
            error.add_note(kept)
            raise
        raise type(error)(f"{error} {kept}") from error
