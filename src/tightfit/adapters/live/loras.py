"""LoRAs of a whole pipeline: refused by name where they are another model's, loaded, gone again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from tightfit.adapters.libraries import said_by_us
from tightfit.errors import InputError, TightfitError, UsageError
from tightfit.run.fitting.lora import check_lora
from tightfit.weigh.files.headers import read_header

_NAME = "tightfit-{}"


@contextmanager
def wearing(pipe: Any, loras: Sequence[tuple[Path, float]]) -> Iterator[None]:
    """While inside, `pipe` has the LoRAs in these files, each with its strength.

    Raises `InputError` for one that is another model's, naming what does not fit, and `UsageError`
    where the pipeline takes none, or has adapters already.
    """
    if not loras:
        yield
        return
    if not hasattr(pipe, "load_lora_weights"):
        raise UsageError(f"{type(pipe).__name__} takes no LoRA: leave out --lora.")
    if any(pipe.get_list_adapters().values()):
        raise UsageError(
            f"`{type(pipe).__name__}` has adapters already: load this one beside them with "
            "pipe.load_lora_weights."
        )
    names: list[str] = []
    try:
        for path, _ in loras:
            names.append(_NAME.format(len(names) + 1))
            _load(pipe, path, names[-1])
        pipe.set_adapters(names, [strength for _, strength in loras])
        yield
    finally:
        with suppress(Exception):  # where loading failed half way there may be none
            pipe.unload_lora_weights()


def check_files(loras: Sequence[tuple[Path, float]]) -> None:
    """Refuse, before anything is loaded, what is no LoRA or no file. Raises `InputError`."""
    for path, strength in loras:
        if not -100 <= strength <= 100:
            raise UsageError(f"--lora {path}:{strength:g}: a strength is between -100 and 100.")
        names = [each.name for each in read_header(path).tensors]
        if not any("lora" in name.lower() for name in names):
            first = ", ".join(f"`{name}`" for name in names[:2])
            raise InputError(f"--lora {path} holds no LoRA, but {first or 'nothing'}.")


def parse_lora(text: str) -> tuple[Path, float]:
    """``FILE`` or ``FILE:STRENGTH``. Raises `UsageError` where the strength is no number."""
    found = re.fullmatch(r"(?P<path>.+?)(?::(?P<strength>[^:/\\]*))?", text)
    assert found is not None or not text
    if found is None or not found["path"]:
        raise UsageError("--lora is FILE or FILE:STRENGTH, such as style.safetensors:0.8.")
    if found["strength"] is None or Path(text).is_file():
        return Path(text), 1.0
    try:
        return Path(found["path"]), float(found["strength"])
    except ValueError:
        raise UsageError(
            f"--lora `{text}`: `{found['strength']}` is no strength; write FILE:0.8."
        ) from None


def _load(pipe: Any, path: Path, name: str) -> None:
    networks = {
        part: module for part, module in pipe.components.items() if isinstance(module, nn.Module)
    }
    for part, module in networks.items():
        with _named(path):
            check_lora(module, path, prefix=part)
    with said_by_us(f"--lora {path}"):
        pipe.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=name)
    if not any(name in adapters for adapters in pipe.get_list_adapters().values()):
        raise InputError(
            f"--lora {path} is for another model: none of its keys is of "
            f"{', '.join(type(module).__name__ for module in networks.values())}."
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say of which file it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--lora {path} is for another model: {error}") from None
    except TightfitError:
        raise
