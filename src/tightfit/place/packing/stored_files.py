"""The tensors of a checkpoint by their names, whether its files are packed or not."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tightfit.errors import InputError
from tightfit.place.packing.packed_file import PackedFile
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.packed_file import is_packed
from tightfit.weigh.files.pickles import pickled_tensors, read_pickle
from tightfit.weigh.files.safetensors_header import read_safetensors
from tightfit.weigh.files.safetensors_layout import read_layout
from tightfit.weigh.files.tensor_header import TensorHeader


class StoredFiles:
    """The tensors of a file, of the shards of an index, or of a folder, by their names.

    Attributes:
        files: that hold them.
        headers: of each tensor, as it was before it was packed.
        packed: whether other loaders would not find these in them: one is packed, or is a pickle,
            of which only tensors are read.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        """Read the headers; what is opened is closed with `stack`.

        Raises `InputError` for what is no safetensors file (or a pickle that is allowed), damaged
        or incomplete.
        """
        header = read_header(path)
        if header.format == "gguf":
            raise InputError(f"{path} is {header.format}: weights are loaded from safetensors.")
        self.files = header.files
        self.headers: dict[str, TensorHeader] = {}
        self._opened: dict[str, Any] = {}
        self.packed = header.format == "pickle"
        for file in header.files:
            if header.format == "pickle":
                pickled = _Pickled(file)
                self.headers |= read_pickle(file).by_name
                self._opened |= dict.fromkeys(pickled.tensors, pickled)
                continue
            packed = is_packed(read_layout(file).metadata)
            self.packed = self.packed or packed
            try:
                opened: Any = (
                    PackedFile(file)
                    if packed
                    else stack.enter_context(safe_open(str(file), framework="pt"))
                )
            except (OSError, SafetensorError) as error:
                raise InputError(f"Cannot read {file}: {error}.") from None
            for each in read_safetensors(file).tensors:
                self.headers[each.name] = each
                self._opened[each.name] = opened

    def tensor(self, name: str) -> torch.Tensor:
        """Its pages are read when they are used, unless they are packed.

        Raises `InputError` that names a packed tensor which is damaged.
        """
        opened = self._opened[name]
        if isinstance(opened, PackedFile):
            return opened.tensor(name)
        found: torch.Tensor = opened.get_tensor(name)
        return found


class _Pickled:
    """The tensors of a pickle, in the words of safetensors."""

    def __init__(self, path: Path) -> None:
        self.tensors = pickled_tensors(path)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]
