"""Parts of a pipeline that come from somewhere else than the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch

from tightfit.adapters.loading.part_file import check_file, header_of
from tightfit.adapters.parts import DENOISE, Part, outline_part, stand_alone
from tightfit.errors import InputError, UsageError
from tightfit.weigh.files.recognise import recognise


def replaced(
    parts: tuple[Part, ...], others: Mapping[str, Path], *, whole: str
) -> tuple[Part, ...]:
    """`parts` of the pipeline `whole` with those that `others` names taken from these paths.

    ``transformer`` also names a UNet. Nothing but headers and configurations is read. Raises
    `UsageError` for a part that the pipeline has not, and `InputError` for a file that holds
    another architecture than the part it is to be.
    """
    found = {part.name: part for part in parts}
    for name, path in others.items():
        slot = _slot(name, parts)
        if slot is None:
            near = get_close_matches(name, found, n=3, cutoff=0.5)
            listed = ", ".join(near or found)
            said = "near it are" if near else "it has"
            raise UsageError(f"`{whole}` has no part `{name}`: {said} {listed}.")
        found[slot] = _other(found[slot], Path(path).expanduser())
    return tuple(found.values())


def _slot(name: str, parts: tuple[Part, ...]) -> str | None:
    if any(part.name == name for part in parts):
        return name
    denoisers = [part.name for part in parts if part.stage == DENOISE]
    return denoisers[0] if name in ("transformer", "unet") and denoisers else None


def _other(part: Part, path: Path) -> Part:
    what = f"the {part.name} of {part.pipeline}"
    if path.is_dir():
        return _of_folder(part, path, what)
    if not path.is_file():
        raise InputError(f"`{path}`, which is to be {what}, is no file or folder here.")
    check_file(path, outline_part(part, dtype=torch.float32), what=what, base=_known_name(part))
    return replace(part, spec=str(path), path=path, random=False)


def _of_folder(part: Part, path: Path, what: str) -> Part:
    """A component's own folder: its configuration, which may be of another size than the base's."""
    inside = path / part.name
    found = stand_alone(str(path), inside if (inside / "config.json").is_file() else path)
    if found.class_name != part.class_name:
        raise InputError(
            f"`{path}` is a {found.class_name}, and {what} is a {part.class_name}: take the folder "
            "of one, or another base."
        )
    assert found.path is not None
    header_of(found.path)
    return replace(
        found, name=part.name, pipeline=part.pipeline, pipeline_class=part.pipeline_class
    )


def _known_name(part: Part) -> str | None:
    """The architecture by the name that files are recognised as."""
    if part.random:
        return part.spec.removeprefix("random:")
    assert part.path is not None
    try:
        known = recognise(header_of(part.path))
    except InputError:
        return None
    return None if known is None else known.name
