"""The latents of a call, on disk before its decode begins: what took hours is not lost with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch
from torch import nn

from tightfit.adapters.known.architectures import ARCHITECTURES
from tightfit.adapters.parts import Part
from tightfit.adapters.traits import SUPPORTED, traits_of
from tightfit.api.work import dtype_name
from tightfit.errors import InputError
from tightfit.media.latents import LatentFile, save_latent
from tightfit.run.vae import Traits


def latents_beside(out: Path) -> Path:
    """Where the latent of what goes to `out` is kept meanwhile."""
    return out.with_name(f"{out.name}.latents.safetensors")


@dataclass
class SavedLatents:
    """Files of the latents of one call, one for each picture or clip.

    Attributes:
        paths: where each goes.
        outs: what each becomes.
        vae: a SPEC that `tightfit decode` takes.
        rate: frames per second of clips.
        dtype: to be named in the command; None where decoding finds it by itself.
        written: the files that are there.
    """

    paths: Sequence[Path]
    outs: Sequence[Path]
    vae: str
    rate: Fraction | None = None
    dtype: str | None = None
    written: list[Path] = field(default_factory=list)

    def keep(self, vae: nn.Module, latent: torch.Tensor) -> None:
        """Write `latent` [B,C,(T,)H,W], raw; a VAE of a kind that is not known leaves nothing."""
        try:
            traits = traits_of(type(vae).__name__, getattr(vae, "config", {}))
        except InputError:
            return
        count = len(self.paths)
        if latent.dim() != traits.axes + 2 or latent.shape[0] != count:
            return
        on_host = latent.detach().to("cpu")
        for at, path in enumerate(self.paths):
            save_latent(path, _file(on_host[at : at + 1], traits, self.rate))
            self.written.append(path)

    def drop(self) -> None:
        """Remove the files: what they were for is written."""
        for path in self.written:
            with suppress(OSError):
                path.unlink()
        self.written.clear()

    @property
    def finish(self) -> str:
        """The sentence that says how to go on from the files."""
        command = ["tightfit", "decode", str(self.written[0]), "-o", str(self.outs[0])]
        command += ["--vae", self.vae, "--tile", "auto"]
        command += ["--dtype", self.dtype] if self.dtype is not None else []
        more = len(self.written) - 1
        others = f" (and likewise for {more} more beside it)" if more else ""
        return f"The latents are kept. Finish with{others}: {shlex.join(command)}"


def vae_spec(parts: Sequence[Part], spec: str) -> str:
    """The VAE among `parts` as `tightfit decode` takes it; `spec` where it is not known better."""
    for part in parts:
        if part.class_name not in SUPPORTED:
            continue
        if part.path is not None:
            return str(part.path)
        for name, known in ARCHITECTURES.items():
            same = known.class_name == part.class_name and known.arguments == part.config
            if part.random and same:
                return f"random:{name}"
    return spec


def _file(latent: torch.Tensor, traits: Traits, rate: Fraction | None) -> LatentFile:
    """With the sizes of what it becomes."""
    samples = [axis.samples for axis in traits.latent_axes(tuple(latent.shape[2:]))]
    return LatentFile(
        latent=latent.contiguous(),
        vae=traits.name,
        scale=traits.scale or None,
        shift=traits.shift or None,
        ratio=(traits.temporal, traits.spatial),
        dtype=dtype_name(latent.dtype),
        width=samples[-1],
        height=samples[-2],
        frames=samples[0] if traits.axes == 3 and rate is not None else None,
        fps=rate,
        padding={"frames": 0, "bottom": 0, "right": 0, "dropped": 0},
    )
