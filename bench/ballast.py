"""A second process that holds a card, so that little of it is free for everybody else.

    python bench/ballast.py [cuda:0]

Each line that it reads is a number of bytes to leave free, ``all`` lets go; to each it answers with
what is free then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_GRAIN = 2 << 20


@dataclass(frozen=True)
class Ballast:
    """The pipes to such a process; those who inherit them may speak to it one after another.

    Attributes:
        answers, orders: descriptors to read from and to write to.
    """

    answers: int
    orders: int

    def leave(self, size: int | None) -> int:
        """Hold everything but `size` bytes, or nothing for None; what is free now.

        Raises `RuntimeError` where the process is gone.
        """
        try:
            os.write(self.orders, f"{'all' if size is None else size}\n".encode())
        except BrokenPipeError:
            raise RuntimeError("the process that holds the card is gone") from None
        text = b""
        while not text.endswith(b"\n"):
            more = os.read(self.answers, 1)
            if not more:
                raise RuntimeError("the process that holds the card is gone")
            text += more
        return int(text)


def started(device: str = "cuda:0") -> tuple[subprocess.Popen[bytes], Ballast]:
    """Start one; it imports and opens the card while others go on. It ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, Ballast(process.stdout.fileno(), process.stdin.fileno())


def main() -> None:
    """Hold as told, until the input ends."""
    import torch

    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda:0")
    torch.zeros(1, device=device)
    held: list[torch.Tensor] = []
    while order := sys.stdin.readline().strip():
        held.clear()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(device)[0]
        most = 1 << 62
        while order != "all" and min(most, free - int(order)) >= _GRAIN:
            size = min(most, free - int(order)) // _GRAIN * _GRAIN
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device=device))
            except torch.OutOfMemoryError:
                most = size // 2  # not in one piece
            free = torch.cuda.mem_get_info(device)[0]
        print(free, flush=True)


if __name__ == "__main__":
    main()
