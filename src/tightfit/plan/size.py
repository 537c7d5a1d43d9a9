"""The size of a job: what the user asks for, in samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.errors import UsageError

LARGEST_SIDE = 2**17
MOST_FRAMES = 2**17
LARGEST_BATCH = 2**12


@dataclass(frozen=True)
class Size:
    """A picture or a clip, `batch` of them at once.

    Attributes:
        width, height: in pixels.
        frames: 1 for a picture.
        batch: how many at once.
    """

    width: int
    height: int
    frames: int = 1
    batch: int = 1

    def __post_init__(self) -> None:
        """Refuse what no job can mean."""
        for name, value, most in (
            ("width", self.width, LARGEST_SIDE),
            ("height", self.height, LARGEST_SIDE),
            ("frames", self.frames, MOST_FRAMES),
            ("batch", self.batch, LARGEST_BATCH),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"--{name} `{value}` is out of range: use 1 to {most}.")

    @property
    def area(self) -> int:
        """Pixels of one frame."""
        return self.width * self.height

    @property
    def samples(self) -> int:
        """Pixels of all frames of one item."""
        return self.area * self.frames

    def scaled(self, *, frames: int | None = None, side: int | None = None) -> Size:
        """The same job with other frames, or with its longer side `side` (the ratio kept)."""
        size = self if frames is None else replace(self, frames=frames)
        if side is None:
            return size
        longer = max(self.width, self.height)
        width = max(1, self.width * side // longer)
        height = max(1, self.height * side // longer)
        return replace(size, width=width, height=height)

    def __str__(self) -> str:
        clip = f"{self.frames} frames of " if self.frames > 1 else ""
        many = f"{self.batch} times " if self.batch > 1 else ""
        return f"{many}{clip}{self.width}x{self.height}"
