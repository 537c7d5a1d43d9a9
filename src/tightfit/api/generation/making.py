"""One pipeline that is ready on its card, and the pictures or clips that it makes."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from tightfit.adapters.live.marks import marked
from tightfit.adapters.live.orders import Order, Speech
from tightfit.adapters.live.resuming import kept
from tightfit.adapters.live.variants import without_bar
from tightfit.api.generation.preview import Preview
from tightfit.api.generation.saved_latents import SavedLatents, latents_beside
from tightfit.api.generation.targets import write
from tightfit.api.generation.timeline import DENOISE, Timeline, stage_of
from tightfit.api.result import Frames
from tightfit.api.sharing.pipelines import FittedPipeline
from tightfit.errors import Cancelled, JobFailed, MemoryShortage, TightfitError
from tightfit.media.inscription import read_inscription
from tightfit.plan.batch import MOST_AT_ONCE
from tightfit.run.ladder import Attempt, Keepsakes, empty_frames
from tightfit.run.ladder.once import once
from tightfit.units import format_bytes


@dataclass(frozen=True, eq=False)
class Generated:
    """One picture or clip, or why there is none.

    Attributes:
        prompt, seed: what it was made from.
        frames: [N,3,H,W] in 0..1, on the host; None where it failed, or was there already.
        settings: everything that tells how it was made, as written into the file.
        path: of the file; None where none was asked for.
        error: the sentence, where it failed.
    """

    prompt: str | None
    seed: int
    frames: Frames | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    error: str | None = None


@dataclass(frozen=True)
class Keeping:
    """What is kept on disk meanwhile, and from where a job goes on.

    Attributes:
        every: seconds between two states of a job.
        resume: go on from the state of the last one.
        latents: whether latents stay when all is written.
        vae: a SPEC of the VAE, for whoever decodes them.
        dtype: that the VAE has to be loaded in for that; None is as stored.
        what: of the job, beside its settings: another one does not go on with its state.
    """

    every: float = 60.0
    resume: bool = False
    latents: bool = False
    vae: str = ""
    dtype: str | None = None
    what: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Making:
    """A pipeline at work.

    Attributes:
        pipe: fitted, or of networks that are.
        fitted: what is known of those.
        speech: how its call is spoken to.
        timeline: of all its calls.
        keeping: what is kept on disk.
        told: settings that are the same for all.
        preview: shows how far it is; None where nobody asked.
        at_once: the most that one call makes; less after one did not fit.
        attempts: of batches that did not fit.
        adjusted: what was changed of what was asked.
    """

    pipe: Any
    fitted: FittedPipeline
    speech: Speech
    timeline: Timeline
    keeping: Keeping
    told: Mapping[str, str]
    preview: Preview | None = None
    at_once: int = MOST_AT_ONCE
    attempts: list[dict[str, Any]] = field(default_factory=list)
    adjusted: list[str] = field(default_factory=list)

    def make(
        self,
        order: Order,
        seeds: Sequence[int],
        outs: Sequence[Path] | None,
        latents: Sequence[Path] | None,
    ) -> list[Generated]:
        """One picture or clip for each seed, several at once where they fit.

        Raises what ended the job; then what was written before is whole, the rest is absent.
        """
        done: list[Generated] = []
        most = self.at_once if self.speech.at_once is not None else 1
        while len(done) < len(seeds):
            now = slice(len(done), len(done) + most)
            part = _Part(
                seeds[now],
                None if outs is None else outs[now],
                None if latents is None else latents[now],
            )
            try:
                done += self._call(order, part)
            except _TooMany as error:
                most = self._fewer(len(part.seeds), str(error))
                empty_frames(error)
            gc.collect()  # what a failed try left behind, and what a made one dropped
        return done

    def there_already(
        self, order: Order, seeds: Sequence[int], outs: Sequence[Path]
    ) -> list[Generated]:
        """What an interrupted job has written of these, by what their files say; all or none."""
        found = []
        for seed, out in zip(seeds, outs, strict=True):
            text, wanted = read_inscription(out), self._settings(order, seed)
            if any(text.get(name) != value for name, value in wanted.items()):
                return []
            found.append(Generated(order.prompt, seed, settings=text, path=out))
        self.adjusted.append(f"{', '.join(map(str, outs))} were there already")
        return found

    def _fewer(self, count: int, reason: str) -> int:
        """So many at once from here on, after `count` did not fit."""
        self.at_once = count // 2
        self.attempts.append(
            {
                "stage": DENOISE,
                "rung": f"{count} at once",
                "outcome": "oom",
                "reason": reason,
                "tile": None,
            }
        )
        self.adjusted.append(f"made {self.at_once} at once, since {count} did not fit")
        return self.at_once

    def _call(self, order: Order, part: _Part) -> list[Generated]:
        saved = self._saved(order, part)
        settings = [self._settings(order, seed) for seed in part.seeds]
        state = None if part.outs is None else resume_beside(part.outs[0])
        try:
            frames = self._run(order, part, saved, settings, state)
            self.timeline.begins("write")
            made = [
                self._finish(order, part, at, each, told)
                for at, (each, told) in enumerate(zip(frames, settings, strict=True))
            ]
        except MemoryShortage as error:
            if not saved.written and len(part.seeds) > 1:
                raise _TooMany(error.what) from None
            raise _with_way_on(error, saved) from None
        except (KeyboardInterrupt, Cancelled) as error:
            _say_what_is_kept(error, state, part.seeds[0])
            raise
        except TightfitError as error:
            raise _with_way_on(error, saved) from None
        except Exception as error:
            if not saved.written:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            failed = JobFailed(f"The decode failed: {type(error).__name__}: {reason}")
            raise _with_way_on(failed, saved) from error
        if state is not None:
            state.unlink(missing_ok=True)
        if not self.keeping.latents:
            saved.drop()
        self.timeline.begins(None)
        return made

    def _run(
        self,
        order: Order,
        part: _Part,
        saved: SavedLatents,
        settings: Sequence[Mapping[str, str]],
        state: Path | None,
    ) -> list[Frames]:
        """The call of the pipeline itself, by the ladder of each network."""
        generators = [torch.Generator().manual_seed(seed) for seed in part.seeds]
        given = self.speech.arguments(order, generators)
        card, timeline = self.fitted.card, self.timeline
        skipped = left = 0
        preview = self.preview
        if preview is not None:
            preview.height, preview.width = order.height, order.width

        def code(direction: str, vae: nn.Module, source: torch.Tensor) -> None:
            if direction == "decode":
                saved.keep(vae, source)
            timeline.begins("encode image" if direction == "encode" else "decode")

        def step(done: int, total: int) -> None:
            nonlocal left
            left = total - done if done > skipped else -1
            if done > skipped:
                timeline.stepped(done, total)

        def show(before: torch.Tensor, after: torch.Tensor) -> None:
            if preview is not None and left >= 0:
                preview.show(self.pipe.scheduler, before, after, last=left == 0)

        timeline.begins("encode text")
        with ExitStack() as stack:
            stack.enter_context(without_bar(self.pipe))
            stack.enter_context(timeline.following(self.fitted.networks))
            if state is not None:
                keeping = stack.enter_context(self._kept(state, settings, generators))
                skipped = keeping.resumed_at or 0
            shows = None if preview is None else show
            stack.enter_context(marked(self.pipe, on_step=step, on_code=code, on_latents=shows))
            nothing = Keepsakes(nn.Module(), device=card.device)
            values, failure = once(lambda: self.pipe(**given), card, nothing)
        if not values:
            raise MemoryShortage(
                f"Not enough memory for what {self.speech.name} computes beside its networks.",
                figures=f"{format_bytes(self.fitted.budget.budget)} may be used; {failure}",
                advice="a larger budget, or a smaller picture",
            )
        if preview is not None:
            self.adjusted += [note for note in preview.notes if note not in self.adjusted]
        return [Frames(each, self.speech.rate(order)) for each in _pixels(values[0])]

    def _finish(
        self, order: Order, part: _Part, at: int, frames: Frames, settings: Mapping[str, str]
    ) -> Generated:
        """Write it where it goes."""
        count, _, height, width = frames.pixels.shape
        settings = {**settings, "size": f"{width}x{height}"}
        if frames.fps is not None:
            settings["frames"] = str(count)
        path = None if part.outs is None else part.outs[at]
        if path is not None:
            notes = write(path, frames, settings)
            self.adjusted += [note for note in notes if note not in self.adjusted]
        return Generated(order.prompt, part.seeds[at], frames, settings, path)

    def _settings(self, order: Order, seed: int) -> dict[str, str]:
        return {**self.speech.settings(order), "seed": str(seed), **self.told}

    def _saved(self, order: Order, part: _Part) -> SavedLatents:
        outs = part.outs or ()
        paths = part.latents or tuple(latents_beside(out) for out in outs)
        keeping = self.keeping
        return SavedLatents(
            paths, outs or paths, keeping.vae, self.speech.rate(order), keeping.dtype
        )

    @contextmanager
    def _kept(
        self,
        path: Path,
        settings: Sequence[Mapping[str, str]],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Any]:
        """Keep the state of the call in a file."""
        seeds = " ".join(each["seed"] for each in settings)
        identity = {**settings[0], **self.keeping.what, "seeds": seeds}
        with kept(
            self.pipe,
            path,
            identity=identity,
            generators=generators,
            every=self.keeping.every,
            resume=self.keeping.resume,
        ) as keeping:
            yield keeping
        if keeping.resumed_at is not None:
            self.adjusted.append(f"went on after step {keeping.resumed_at}, from {path}")
        self.adjusted += [note for note in keeping.notes if note not in self.adjusted]

    def network_attempts(self, before: Mapping[str, int]) -> list[dict[str, Any]]:
        """What networks tried since they had so many attempts."""
        found = []
        for name, network in self.fitted.networks.items():
            for each in network.attempts[before.get(name, 0) :]:
                stage = replace(each, stage=stage_of(name))
                found.append({**as_attempt(stage), "network": name})
        return found


class _TooMany(Exception):
    """So many pictures at once do not fit."""


@dataclass(frozen=True)
class _Part:
    """What one call makes."""

    seeds: Sequence[int]
    outs: Sequence[Path] | None
    latents: Sequence[Path] | None


def resume_beside(out: Path) -> Path:
    """Where the state of the job that makes `out` is kept meanwhile."""
    return out.with_name(f"{out.name}.resume.safetensors")


def kept_seed(outs: Sequence[Path]) -> int | None:
    """The first seed of a job that was left half way; None where none of these was."""
    for state in map(resume_beside, outs):
        with suppress(OSError, SafetensorError, LookupError, ValueError):
            with safe_open(str(state), framework="pt") as handle:
                identity = json.loads(handle.metadata()["identity"])
            return int(identity["seeds"].split()[0])
    return None


def written_seed(outs: Sequence[Path]) -> int | None:
    """The seed that the first of these files which is there tells; None where none does."""
    for out in outs:
        told = read_inscription(out).get("seed", "") if out.exists() else ""
        if told.isdecimal():
            return int(told)
    return None


def as_attempt(attempt: Attempt) -> dict[str, Any]:
    """As reports have them."""
    values = asdict(attempt)
    values["tile"] = None if attempt.tile is None else list(attempt.tile)
    return values


def _pixels(made: Any) -> list[torch.Tensor]:
    """What a pipeline gives, as [N,3,H,W] in 0..1 for each picture or clip, on the host."""
    found = made.frames if hasattr(made, "frames") else made.images
    items = found.detach().to("cpu").float()
    if items.dim() == 4:
        items = items.unsqueeze(1)
    return list(items)


def _with_way_on(error: TightfitError, saved: SavedLatents) -> TightfitError:
    """The same error, whose last sentence says how to go on from the latents that are kept."""
    if saved.written:
        error.args = (f"{error}\n{saved.finish}",)
    return error


def _say_what_is_kept(error: BaseException, path: Path | None, seed: int) -> None:
    if path is not None and path.is_file():
        error.add_note(
            f"{path} is kept: the same command with --resume and --seed {seed} goes on from there"
        )
