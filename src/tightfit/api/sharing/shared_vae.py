"""A VAE on a shared card: it codes by the ladder, and is there only while it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.live.pipeline import code_by
from tightfit.api.sharing.shared_card import SharedCard
from tightfit.api.sharing.taken import Taken
from tightfit.place import placed
from tightfit.plan.tilesize import TileWish
from tightfit.run.fitting.handing import handed, other_card
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Attempt
from tightfit.run.rungs import Progress
from tightfit.run.vae import Direction, Vae


@dataclass(frozen=True)
class Codes:
    """How the VAEs of a pipeline are to code.

    Attributes:
        wish: what was asked about tiles.
        estimate: ask the planner before each rung.
        allow_cpu: where the card cannot do it, the host may.
        progress: told after every strip and tile.
    """

    wish: TileWish = field(default_factory=TileWish)
    estimate: bool = True
    allow_cpu: bool = False
    progress: Progress | None = None


class Owner(Protocol):
    """A pipeline, as its VAE sees it."""

    before_decode: Callable[[torch.Tensor], None] | None
    codes: Codes

    def coded(self, attempts: Sequence[Attempt]) -> None:
        """What became of an encode or a decode."""


@dataclass(frozen=True)
class SharedVae:
    """One VAE, for one or several pipelines.

    Attributes:
        shared: its card.
        taken: what the card knows of it.
    """

    shared: SharedCard
    taken: Taken

    def begin(self) -> None:
        """From here on its methods code like this, until the module is given back."""
        self.taken.undo.callback(code_by(self.taken.module, self._code, self._as_written))

    def _as_written(
        self,
        direction: Direction,
        source: object,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        shared, taken = self.shared, self.taken
        device = shared.card.device
        with shared.at_work(taken):
            taken.coded += 1
            if isinstance(source, torch.Tensor):
                self._tell(direction, source)
            shared.shelf.comes(taken.name, int)
            shared.shelf.needs(taken.name, None)
            asker = other_card((args, kwargs), device)
            if asker is not None:
                args, kwargs = handed((args, kwargs), asker, device)
            with placed(taken.module, device):
                value = run(*args, **kwargs)
            if asker is None:
                return value
            return handed(value, device, asker, makes_room=taken.home_gives)

    def _code(self, direction: Direction, source: torch.Tensor) -> torch.Tensor:
        """By the ladder: whole, whole without the others, strips, tiles."""
        shared, taken = self.shared, self.taken
        with shared.at_work(taken) as cancel:
            taken.coded += 1
            shared.shelf.comes(taken.name, int)
            vae = adapt(taken.module, hashed=False)  # its dtype may have been changed meanwhile
            on_host = source.to("cpu", vae.dtype)
            self._tell(direction, on_host)
            codes = next((each.codes for each in self._owners()), Codes())
            request = Request(
                shared.budget.budget,
                shared.budget.reserve,
                codes.wish,
                codes.estimate,
                evict=self._evict,
                allow_cpu=codes.allow_cpu,
            )
            job = Job(
                _of_moments(vae) if direction == "encode" else vae,
                direction,
                shared.card,
                request,
                cancel=cancel,
                recorder=shared.recorder,
                progress=codes.progress,
                calibrations=shared.calibrations,
            )
            outcome = job.run(on_host)
            for each in self._owners():
                each.coded(outcome.attempts)
            asker = other_card(source, shared.card.device) or shared.card.device
            host = outcome.value.device
            made: torch.Tensor = handed(outcome.value, host, asker, makes_room=taken.home_gives)
            return made

    def _evict(self, lacking: int | None) -> int:
        """So many bytes more than are free now; None takes all there is."""
        shelf = self.shared.shelf
        return shelf.needs(self.taken.name, None if lacking is None else shelf.room() + lacking)

    def _tell(self, direction: Direction, source: torch.Tensor) -> None:
        for each in self._owners() if direction == "decode" else ():
            if each.before_decode is not None:
                each.before_decode(source.to("cpu"))

    def _owners(self) -> list[Any]:
        """The pipeline that codes; all that share the VAE, where nobody can tell which it is."""
        users, user = list(self.taken.users), self.shared.user
        return [user] if user in users else users


def _of_moments(vae: Vae) -> Vae:
    """Encoding gives the posterior's moments, from which the pipeline draws as it likes."""
    assert vae.moments is not None
    traits = replace(vae.traits, latent_channels=2 * vae.traits.latent_channels)
    return replace(vae, traits=traits, encode=vae.moments)
