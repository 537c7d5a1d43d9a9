"""A whole pipeline on one card: every network fitted, and what is idle out of the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.live_pipeline import Component, answer_for, code_by, components_of
from tightfit.api.fitting import fit_at_rest, refuse_fitted, unfit
from tightfit.card import Card, open_card
from tightfit.errors import UsageError
from tightfit.place import placed
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.plan.room import room_left
from tightfit.run.fitting.fitted import Fitted
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Attempt
from tightfit.run.shelf import Shelf
from tightfit.run.vae import Direction, Vae
from tightfit.units import format_bytes
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibrations

_known: dict[int, FittedPipeline] = {}
_guard = threading.Lock()


@dataclass(eq=False, repr=False)
class FittedPipeline:
    """A pipeline, its card, and who of it is there.

    Attributes:
        pipe: the user's, to be called as ever.
        card: where it runs.
        budget: bytes that it may use of that, and what is kept free for others.
        shelf: who makes room for whom.
        networks: by name in the pipeline, but for VAEs.
        vaes: by name; they are on the card only while they code.
        codings: what became of the last encodes and decodes, rung by rung.
        before_decode: called with the raw latent, on the host, just before each decode.
    """

    pipe: Any
    card: Card
    budget: Budget
    shelf: Shelf
    networks: dict[str, Fitted] = field(default_factory=dict)
    vaes: dict[str, nn.Module] = field(default_factory=dict)
    codings: list[Attempt] = field(default_factory=list)
    before_decode: Callable[[torch.Tensor], None] | None = None
    _calibrations: Calibrations = field(default_factory=Calibrations)
    _undo: ExitStack = field(default_factory=ExitStack)

    def __repr__(self) -> str:
        names = ", ".join((*self.networks, *self.vaes))
        return f"FittedPipeline({type(self.pipe).__name__} on {self.card.name}: {names})"

    def explain(self) -> str:
        """A line for each network: where its weights are now; then who rested for whom."""
        lines = []
        for name, network in self.networks.items():
            size = format_bytes(weight_bytes(network.module))
            there = format_bytes(network.taken)
            lines.append(f"{name}: {size}, {there} on the card now, {network.calls} calls")
        for name, module in self.vaes.items():
            size = format_bytes(weight_bytes(module))
            lines.append(f"{name}: {size}, on the card while it codes")
        lines += [f"{each.stage} by {each.rung}: {each.outcome}" for each in self.codings[-4:]]
        return "\n".join([*lines, *self.shelf.notes])

    def open(self, components: tuple[Component, ...], mode: str, pack: str) -> None:
        """Take every part; whatever happens, those that were taken are given back."""
        try:
            for each in components:
                if each.is_vae:
                    self._take_vae(each)
                else:
                    self._take_network(each, mode, pack)
                self._undo.callback(answer_for(each.module, self.card.device))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Everything is as it was, on the host."""
        self._undo.close()

    def _take_network(self, component: Component, mode: str, pack: str) -> None:
        name, module = component.name, component.module
        network = fit_at_rest(module, card=self.card, budget=self.budget, mode=mode, pack=pack)
        self._undo.callback(lambda: unfit(module))
        network.makes_room = lambda wanted: self._comes(name, wanted)
        network.takes_room = lambda: self._free(name, None)
        self.networks[name] = network
        self.shelf.models[name] = _OnShelf(network)

    def _comes(self, name: str, wanted: Callable[[], int]) -> None:
        self.shelf.comes(name, wanted)

    def _free(self, name: str, lacking: int | None) -> int:
        """So many bytes more than are free now; None takes all there is."""
        return self.shelf.needs(name, None if lacking is None else self.shelf.room() + lacking)

    def _take_vae(self, component: Component) -> None:
        name, module = component.name, component.module
        refuse_fitted(module)

        def code(direction: Direction, source: torch.Tensor) -> torch.Tensor:
            return self._code(name, module, direction, source)

        def as_written(call: Callable[[], Any]) -> Any:
            self.shelf.comes(name, int)
            self.shelf.needs(name, None)
            with placed(module, self.card.device):
                return call()

        self._undo.callback(code_by(module, code, as_written))
        self.vaes[name] = module

    def _code(
        self, name: str, module: nn.Module, direction: Direction, source: torch.Tensor
    ) -> torch.Tensor:
        """By the ladder: whole, whole without the others, strips, tiles."""
        self.shelf.comes(name, int)
        vae = adapt(module, hashed=False)  # its dtype may have been changed meanwhile
        request = Request(
            self.budget.budget,
            self.budget.reserve,
            evict=lambda lacking: self._free(name, lacking),
        )
        job = Job(
            _of_moments(vae) if direction == "encode" else vae,
            direction,
            self.card,
            request,
            calibrations=self._calibrations,
        )
        on_host = source.to("cpu", vae.dtype)
        if direction == "decode" and self.before_decode is not None:
            self.before_decode(on_host)
        outcome = job.run(on_host)
        self.codings = [*self.codings, *outcome.attempts][-_REMEMBERED:]
        return outcome.value.to(self.card.device)


_REMEMBERED = 64


@dataclass
class _OnShelf:
    """A network as the shelf sees it."""

    network: Fitted

    @property
    def taken(self) -> int:
        return self.network.taken

    def rest(self) -> int:
        try:
            return self.network.rest()
        except UsageError:  # it is at work
            return 0


def fit_pipeline(
    pipe: Any,
    *,
    vram: str | int | None,
    card: str | Card | None,
    reserve: str | int | None,
    mode: str,
    pack: str,
) -> None:
    """Fit every network of `pipe`; see `tightfit.fit`."""
    with _guard:
        if id(pipe) in _known:
            raise UsageError(f"`{type(pipe).__name__}` is fitted already: unfit it first.")
    wish = BudgetWish.of(vram, reserve)
    components = components_of(pipe)
    opened = card if isinstance(card, Card) else open_card(card)
    budget = wish.on(opened.name, opened.read().total)
    kept = FittedPipeline(pipe, opened, budget, Shelf(lambda: _room(opened, budget)))
    kept.open(components, mode, pack)
    with _guard:
        _known[id(pipe)] = kept


def unfit_pipeline(pipe: Any) -> None:
    """Give it back as it was. Raises `UsageError` for one that is not fitted."""
    fitted_pipeline(pipe).close()
    with _guard:
        _known.pop(id(pipe), None)


def fitted_pipeline(pipe: Any) -> FittedPipeline:
    """What is done with `pipe`. Raises `UsageError` for one that is not fitted."""
    with _guard:
        found = _known.get(id(pipe))
    if found is None:
        raise UsageError(f"`{type(pipe).__name__}` is not fitted.")
    return found


def _room(card: Card, budget: Budget) -> int:
    now = card.read()
    return room_left(
        budget=budget.budget if now.limit is None else min(budget.budget, now.limit),
        total=now.total,
        held=now.allocated or 0,
        held_by_others=now.held_by_others or 0,
        context=now.context or 0,
        reserve=budget.reserve,
    )


def _of_moments(vae: Vae) -> Vae:
    """Encoding gives the posterior's moments, from which the pipeline draws as it likes."""
    assert vae.moments is not None
    traits = replace(vae.traits, latent_channels=2 * vae.traits.latent_channels)
    return replace(vae, traits=traits, encode=vae.moments)
