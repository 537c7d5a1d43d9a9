"""Does a pipeline that is fitted on a small card make the bits that it makes on a large one?"""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch

import tightfit
from tightfit.card import Card
from tightfit.errors import MemoryShortage, UsageError

SHARES = (0.5, 0.75, 0.95)
"""Of what a pipeline takes unfitted: budgets to try, the tightest first."""


Tensors = tuple[torch.Tensor, ...]


class Pipes(Protocol):
    """Where pipelines and their calls come from."""

    @property
    def makes(self) -> str:
        """The class of the pipelines, by name."""

    def pipeline(self) -> Any:
        """A new one, on the host, with the same weights each time."""

    def inputs(self, device: str) -> dict[str, Any]:
        """What it is called with; the same each time."""


@dataclass(frozen=True)
class Verdict:
    """What became of one pipeline.

    Attributes:
        name: whose.
        pipeline: its class.
        outcome: ``same bits`` (of the picture, or of what the VAE decodes) as the unfitted
            pipeline, or as the one that is fitted with room for all; ``other bits``, ``failed``
            (fitted, where it runs unfitted), ``refused`` (by a sentence of ours), ``tight`` (not
            even so), ``not finite`` (where it is, unfitted), or ``cannot run`` (unfitted neither).
        reason: why not, in a line.
        share: of what it takes unfitted, the budget that did; None where none of them did, and it
            ran with every weight streamed and room for the rest.
        unfitted: how it is related to what the pipeline makes as it is: ``same bits``, or the
            largest difference.
        picture: so, of the picture alone, which the way in which its VAE coded may have changed.
        rungs: how its VAE coded in the tight run.
        streamed: whether something streamed or rested.
        seconds: of the processor's time that all of it took.
    """

    name: str
    pipeline: str
    outcome: str
    reason: str = ""
    share: float | None = None
    unfitted: str = ""
    picture: str = ""
    rungs: tuple[str, ...] = ()
    streamed: bool | None = None
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(name: str, pipes: Pipes, card: Card, *, seconds: int = 60) -> Verdict:
    """On a large `card`, run it unfitted, and fitted as tightly as it goes; compare.

    Args:
        name: for the row.
        pipes: where pipelines and calls come from.
        card: with room for all.
        seconds: of the processor's time, after which it is given up.
    """
    start, kind = time.process_time(), pipes.makes
    try:
        with _within(seconds):
            verdict = _judge(name, kind, pipes, card)
    except Exception as error:  # of their code as of ours: each is a row
        verdict = Verdict(name, kind, "cannot run", line(error))
    return replace(verdict, seconds=round(time.process_time() - start, 1))


def _judge(name: str, kind: str, pipes: Pipes, card: Card) -> Verdict:
    whole = _made(pipes, card)
    said = ""
    for share in (*SHARES, None):
        terms = {"mode": "none"} if share is None else {"vram": int(share * whole.peak)}
        try:
            made = _made(pipes, card, terms)
        except MemoryShortage as error:
            said = line(error)
            continue
        except (UsageError, NotImplementedError) as error:
            return Verdict(name, kind, "refused", line(error))
        except Exception as error:
            return Verdict(name, kind, "failed", line(error))
        finite = _finite(made.picture) or not _finite(whole.picture)
        unfitted = _apart(whole, made)
        if made.halved and unfitted != "same bits":
            said = "A batch was run in two halves."  # which rounds, and is told
            continue
        equal = unfitted == "same bits" or _apart(_made(pipes, card, {}), made) == "same bits"
        return Verdict(
            name,
            kind,
            "not finite" if not finite else "same bits" if equal else "other bits",
            "" if equal else unfitted,
            share=share,
            unfitted=unfitted,
            picture=apart(whole.picture, made.picture),
            rungs=made.rungs,
            streamed=made.streamed,
        )
    return Verdict(name, kind, "tight", said)


def _apart(one: _Made, other: _Made) -> str:
    pictures = apart(one.picture, other.picture)
    if pictures == "same bits" or not other.latents:
        return pictures
    return apart(one.latents, other.latents)


def _finite(values: Tensors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values)


@dataclass(frozen=True)
class _Made:
    """What a call gave, what a VAE was given to decode, and the most bytes on the card."""

    picture: Tensors
    latents: Tensors
    peak: int
    rungs: tuple[str, ...] = ()
    streamed: bool = False
    halved: bool = False


def _made(pipes: Pipes, card: Card, terms: dict[str, Any] | None = None) -> _Made:
    """By a new pipeline: fitted by `terms`, or, None, as it is. Nothing of it stays."""
    gc.collect()
    pipe = pipes.pipeline()
    if terms is None:
        # PyTorch multiplies some inputs in another way where weights want gradients, also in
        # no_grad(); those of fitted networks never do
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module):
                part.requires_grad_(requires_grad=False)
        return _called(pipe.to(card.device), pipes, card)
    tightfit.fit(pipe, card=card, **terms)
    try:
        made = _called(pipe, pipes, card)
        kept = tightfit.fitted(pipe)
        coded = (one for one in kept.codings if one.outcome == "ok")
        streams = (
            network.taken and network.plan.stages[0].streamed for network in kept.networks.values()
        )
        return replace(
            made,
            rungs=tuple(f"{one.stage} {one.rung}" for one in coded),
            streamed=bool(kept.shelf.notes) or any(streams),
            halved=any(one.halved for one in kept.networks.values()),
        )
    finally:
        tightfit.unfit(pipe)


def _called(pipe: Any, pipes: Pipes, card: Card) -> _Made:
    inputs = pipes.inputs(str(card.device))
    latents: list[torch.Tensor] = []
    card.reset_peaks()
    torch.manual_seed(0)
    with torch.no_grad(), _listening(pipe, latents):
        picture = tuple(tensors(pipe(**inputs)))
    return _Made(picture, tuple(latents), card.read().peak_allocated or 0)


@contextmanager
def _listening(pipe: Any, heard: list[torch.Tensor]) -> Iterator[None]:
    """What `decode` of its parts is given is heard, on the host."""
    with ExitStack() as undo:
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module) and callable(getattr(part, "decode", None)):
                undo.enter_context(_heard(part, heard))
        yield


@contextmanager
def _heard(part: Any, heard: list[torch.Tensor]) -> Iterator[None]:
    """But for what `decode` calls itself, such as in tiles."""
    own, decode = vars(part).get("decode"), part.decode
    inside: list[bool] = []

    def listened(*args: Any, **kwargs: Any) -> Any:
        if not inside:
            heard.extend(tensors([*args, *kwargs.values()]))
        inside.append(True)
        try:
            return decode(*args, **kwargs)
        finally:
            inside.pop()

    part.decode = listened
    try:
        yield
    finally:
        del part.decode
        if own is not None:
            part.decode = own


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """What a call returned, as tensors on the host: also arrays, pictures, and lists of them."""
    if isinstance(value, torch.Tensor):
        yield value.detach().to("cpu", copy=True)
    elif hasattr(value, "__array__"):
        import numpy as np

        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            yield torch.from_numpy(array.copy())
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)


def same(one: Tensors, other: Tensors) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other, strict=True)
    )


def apart(one: Tensors, other: Tensors) -> str:
    if same(one, other):
        return "same bits"
    shapes = [tuple(value.shape) for value in one], [tuple(value.shape) for value in other]
    if shapes[0] != shapes[1]:
        return f"shapes {shapes[0]} and {shapes[1]}"
    most = max(
        float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True)
    )
    return f"{most:.1e} apart"


def line(error: BaseException) -> str:
    """The error, and the last of our or their lines that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "tightfit" in f.filename or "diffusers" in f.filename]
    where = f" ({'/'.join(ours[-1].filename.split('/')[-2:])}:{ours[-1].lineno})" if ours else ""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}{where}"


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"It took more than {seconds} s of the processor's time.")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
