"""An account of our own: which tensors came to a device and went, where no allocator tells."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Moved = Callable[[int, int], None]
"""Called with the address of a storage, and its bytes: above 0 as it comes, below as it goes."""


class TensorAccount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While inside, `moved` is told of each storage that operators of this thread make on `device`.

    When such a storage goes, that is told whenever it happens, also after the block.

    Storages are counted once, whoever shares them, with the bytes they asked for: what an operator
    takes and gives back within itself is not seen, nor what the allocator takes beyond them.

    Attributes:
        live_bytes: of what was made inside and is still there.
        peak_bytes: the most of that.
    """

    def __init__(self, device: torch.device, moved: Moved) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._moved = moved
        self._lock = threading.RLock()
        self._there: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and look at what it made."""
        given = {_key(each) for each in _tensors((args, kwargs)) if self._is_here(each)}
        made = func(*args, **(kwargs or {}))
        for each in _tensors(made):
            if self._is_here(each) and _key(each) not in given:
                self._note(each.untyped_storage())
        return made

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._device.type and self._device.index in (
            None,
            tensor.device.index,
        )

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._there.get(key)
        if (known is not None and known() is not None) or not size:
            return
        address = storage.data_ptr()

        def gone() -> None:
            with self._lock:
                if self._there.get(key) is ref:
                    del self._there[key]
                self.live_bytes -= size
            self._moved(address, -size)

        ref = weakref.ref(storage)
        weakref.finalize(storage, gone).atexit = False  # also after the block
        with self._lock:
            self._there[key] = ref
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._moved(address, size)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(values: Any) -> list[torch.Tensor]:
    """Those in nested tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    waiting = [values]
    while waiting:
        each = waiting.pop()
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list)):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.values()
    return found
