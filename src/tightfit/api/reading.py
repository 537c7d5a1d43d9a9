"""A source that a thread of its own reads, while others load a VAE, or code what comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from tightfit.api.sources import Footage, Selection, looking, read
from tightfit.media.info import MediaInfo
from tightfit.run.vae import Traits
from tightfit.units import GIB

AHEAD = GIB // 2
"""Bytes that may be read of a source whose turn has not come."""
_PATIENCE = 0.2
"""Seconds after which who waits for frames looks whether to stop."""
_SAMPLE = 24
"""Bytes of a still, read and laid over a background, for each pixel: three floats, twice."""
_SOUND = 48
"""Bytes of sound that a byte of a file may become."""


class Reading:
    """A context manager: inside, a source is being read; behind it, nobody reads any more.

    The thread looks at the source, waits to be told `whom` it is for, and reads. A clip whose
    number of frames is known may be used while it comes. What goes wrong is raised to who asks.
    """

    def __init__(
        self,
        source: str | Path | torch.Tensor,
        selection: Selection,
        *,
        ahead: bool = False,
        after: threading.Event | None = None,
    ) -> None:
        """`ahead`: no more than `AHEAD` bytes are read before `go`; nothing before `after` is set.

        `over` is set when the thread has ended.
        """
        self.over, self._after = threading.Event(), after
        self.source, self._selection = source, selection
        self._changed = threading.Condition()
        self._info: MediaInfo | None = None
        self._traits: Traits | None = None
        self._frames: torch.Tensor | None = None
        self._footage: Footage | None = None
        self._error: BaseException | None = None
        self._laid = 0
        self._looked = self._ended = self._closed = False
        self._may_go_on = not ahead
        self._thread = threading.Thread(target=self._run, name="tightfit-reading", daemon=True)
        self._thread.start()

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading, and wait until the thread is gone; nothing is kept."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._frames = self._footage = self._error = None

    def go(self) -> None:
        """Its turn has come: read all of it."""
        with self._changed:
            self._may_go_on = True
            self._changed.notify_all()

    def whom(self, traits: Traits) -> None:
        """It is for a VAE of these traits."""
        with self._changed:
            self._traits = traits
            self._changed.notify_all()

    def seen(self) -> MediaInfo | None:
        """What a look tells; None of a tensor. Raises `InputError` and `UsageError`."""
        self._wait(lambda: self._looked)
        return self._info

    def coming(self) -> torch.Tensor | None:
        """The frames [T,3,H,W] of a clip whose number is known, none of which may be there yet.

        None where nothing is to be had before all of it is read.
        """
        self._wait(lambda: self._frames is not None or self._ended)
        return self._frames

    def frames(self, count: int, check: Callable[[], None]) -> int:
        """Wait for so many of the frames that are `coming`; how many are there.

        `check` is called while waiting, and may raise. Raises `OtherLength` where the clip ends
        before, and what ended the reading.
        """
        self._wait(lambda: self._laid >= count or self._ended, check)
        if self._laid < count:
            raise OtherLength
        return self._laid

    def footage(self, check: Callable[[], None] = lambda: None) -> Footage:
        """All of it, once it is read."""
        self._wait(lambda: self._ended, check)
        assert self._footage is not None
        return self._footage

    # What the thread does

    def begins(self, frames: torch.Tensor) -> None:
        """As a `Follower`."""
        with self._changed:
            self._frames = frames

    def laid(self, count: int, size: int) -> None:
        """As a `Follower`."""
        with self._changed:
            self._laid = count
            self._changed.notify_all()
        self._stay_within(size)

    def _run(self) -> None:
        try:
            while self._after is not None and not self._after.wait(_PATIENCE):
                if self._closed or self._may_go_on:
                    break
            with looking(self.source, self._selection) as seen:
                with self._changed:
                    self._info, self._looked = seen.info, True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._traits is not None or self._closed)
                self._stay_within(self._at_once(seen.info))
                footage = read(self.source, self._selection, seen, self._traits, self)
            self._end(footage, None)
        except BaseException as error:
            self._end(None, error)
        finally:
            self.over.set()

    def _end(self, footage: Footage | None, error: BaseException | None) -> None:
        with self._changed:
            self._footage, self._error = footage, error
            self._looked = self._ended = True
            self._changed.notify_all()

    def _stay_within(self, size: int) -> None:
        """Wait for the turn where more than `AHEAD` was read; stop where nobody wants it."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_go_on or self._closed or size <= AHEAD)
            if self._closed:
                raise _Unwanted

    def _at_once(self, info: MediaInfo | None) -> int:
        """Bytes of what is not read piece by piece."""
        if info is None or isinstance(self.source, torch.Tensor):
            return 0
        path = Path(self.source)
        sounds = info.has_sound and path.is_file()
        size = path.stat().st_size * _SOUND if sounds and info.kind == "sound" else 0
        return size if info.kind != "picture" else info.width * info.height * _SAMPLE

    def _wait(self, until: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
        with self._changed:
            while not self._changed.wait_for(until, _PATIENCE):
                check()
            if self._error is not None:
                raise self._error


class OtherLength(Exception):
    """A clip has not as many frames as its header says."""


class _Unwanted(Exception):
    """Nobody waits for what is read."""
