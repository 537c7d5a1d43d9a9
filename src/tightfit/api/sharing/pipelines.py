"""A whole pipeline on one card or several: every network fitted, idle ones out of the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tightfit.adapters.live.pipeline import Component, components_of, unload_by
from tightfit.api.fitting import dtype_of
from tightfit.api.sharing.shared_card import SharedCard
from tightfit.api.sharing.shared_vae import Codes, SharedVae
from tightfit.api.sharing.taken import Taken
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.plan.cards import Part, Role, on_cards
from tightfit.run.fitting.fitted import Fitted
from tightfit.run.ladder import Attempt
from tightfit.run.shelf import Shelf
from tightfit.watch import Recorder
from tightfit.watch.elsewhere import Elsewhere
from tightfit.weigh import weight_bytes

_known: dict[int, FittedPipeline] = {}
_guard = threading.Lock()


@dataclass(frozen=True)
class Spent:
    """What a network of a pipeline took so far.

    Attributes:
        calls: that were made of it.
        seconds: in them, with what its weights took to come, until the card was done with them.
    """

    calls: int
    seconds: float


@dataclass(eq=False, repr=False)
class FittedPipeline:
    """A pipeline, its card or cards, and who of it is there.

    Attributes:
        pipe: the user's, to be called as ever.
        shared: the card where it works, which other pipelines may use as well.
        elsewhere: by name, the cards of parts that are on other ones.
        overflow: a card on which lies what streams to others, if that is faster than the host.
        codings: what became of the last encodes and decodes, rung by rung.
        before_decode: called with the raw latent, on the host, just before each decode.
        codes: how its VAEs are to code.
    """

    pipe: Any
    shared: SharedCard
    elsewhere: Mapping[str, SharedCard] = field(default_factory=dict)
    overflow: SharedCard | None = None
    codings: list[Attempt] = field(default_factory=list)
    before_decode: Callable[[torch.Tensor], None] | None = None
    codes: Codes = field(default_factory=Codes)
    _parts: dict[str, Taken] = field(default_factory=dict)
    _undo: ExitStack = field(default_factory=ExitStack)

    def __repr__(self) -> str:
        names = ", ".join((*self.networks, *self.vaes))
        return f"FittedPipeline({type(self.pipe).__name__} on {self.card.name}: {names})"

    @property
    def card(self) -> Card:
        """Where it works: its denoiser, and what it does itself between networks."""
        return self.shared.card

    @property
    def cards(self) -> dict[str, Card]:
        """By name of each part, where it runs."""
        return {name: self._on(name).card for name in self._parts}

    @property
    def where(self) -> dict[str, str]:
        """By name of each part, what its card is called."""
        return {name: self._on(name).named for name in self._parts}

    @property
    def budget(self) -> Budget:
        """Bytes that it may use of that, and what is kept free for others."""
        return self.shared.budget

    @property
    def recorder(self) -> Recorder:
        """Who is told what its networks and VAEs do; see `SharedCard`."""
        return self.shared.recorder

    @property
    def shelf(self) -> Shelf:
        """Who makes room for whom."""
        return self.shared.shelf

    @property
    def networks(self) -> dict[str, Fitted]:
        """By name in the pipeline, but for VAEs."""
        return {
            name: each.network for name, each in self._parts.items() if each.network is not None
        }

    @property
    def vaes(self) -> dict[str, nn.Module]:
        """By name; they are on the card only while they code."""
        return {name: each.module for name, each in self._parts.items() if each.network is None}

    @property
    def halved(self) -> dict[str, int]:
        """How often each network had its batch parted in two, since there was no room for it.

        Those that never had are left out. Latents are then those of the whole but for rounding.
        """
        return {name: each.halved for name, each in self.networks.items() if each.halved}

    @property
    def is_open(self) -> bool:
        """Whether it was not given back."""
        return bool(self._parts)

    @property
    def times(self) -> dict[str, Spent]:
        """What each network and VAE took so far; the host waits for the card.

        Those that pipelines share have the calls of all of them.
        """
        for shared in self._every:
            shared.settle()
        return {name: Spent(each.calls, each.seconds) for name, each in self._parts.items()}

    def explain(self) -> str:
        """A line for each network: where its weights are now; then who rested for whom."""
        several, where = len(self._every) > 1, self.where
        lines = [
            part.explain(name) + (f", on {where[name]}" if several else "")
            for name, part in self._parts.items()
        ]
        lines += [f"{name}: {count} calls in two halves" for name, count in self.halved.items()]
        lines += [f"{each.stage} by {each.rung}: {each.outcome}" for each in self.codings[-4:]]
        notes = [note for shared in self._every for note in shared.shelf.notes]
        return "\n".join([*lines, *notes])

    def coded(self, attempts: Sequence[Attempt]) -> None:
        """What became of an encode or a decode of it."""
        self.codings = [*self.codings, *attempts][-_REMEMBERED:]

    def open(
        self, *, mode: str, pack: str, compute: str | Mapping[str, str] = "auto", label: str = ""
    ) -> None:
        """Take every part, under names that begin with `label`.

        Whatever happens, those that were taken are given back.
        """
        dtypes = _dtypes(self.pipe, compute)
        try:
            for each in components_of(self.pipe):
                name, shared = label + each.name, self._on(each.name)
                if each.is_vae:
                    taken = shared.take_vae(
                        each.module, name, self, _codes_on(shared), home=self.shared
                    )
                else:
                    dtype = dtypes.get(each.name, "auto")
                    taken = shared.take(
                        each.module,
                        name,
                        self,
                        mode=mode,
                        pack=pack,
                        compute=dtype,
                        once=each.runs_once,
                        home=self.shared,
                        overflow=self.overflow,
                    )
                self._parts[each.name] = taken
            self._undo.callback(unload_by(self.pipe, self._unload))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Every part that nobody else uses is as it was, on the host; harmless when repeated.

        Raises `UsageError` where one is being called by this thread: all others are given back.
        """
        self._undo.close()
        failed: UsageError | None = None
        for name, taken in reversed(list(self._parts.items())):
            try:
                self._on(name).give_back(taken, self)
            except UsageError as error:
                failed = failed or error
            else:
                del self._parts[name]
        if failed is not None:
            raise failed

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """While inside, `recorder` is told what its parts do; of the memory of its own card."""
        with ExitStack() as stack:
            for shared in self._every:
                own = shared is self.shared
                told = recorder if own else Elsewhere(recorder, shared.card)
                stack.enter_context(shared.recording(told))
            yield

    @property
    def _every(self) -> list[SharedCard]:
        """Its cards, its own first."""
        return list(dict.fromkeys([self.shared, *map(self._on, self._parts)]))

    def _on(self, name: str) -> SharedCard:
        return self.elsewhere.get(name, self.shared)

    def _unload(self, encoder: object, unload: Callable[[], Any]) -> Any:
        """Words that were taught are forgotten again, by new embeddings of an encoder."""
        parts = (each for each in self._parts.values() if each.module is encoder)
        network = next((each.network for each in parts), None)
        if network is None:
            return unload()
        return network.altered_by("unload_textual_inversion", unload)


_REMEMBERED = 64


def fit_pipeline(
    pipe: Any,
    *,
    vram: str | int | None,
    open_all: Callable[[], Sequence[Card]],
    reserve: str | int | None,
    mode: str,
    pack: str,
    compute: str | Mapping[str, str] = "auto",
    where: Mapping[str, int] | None = None,
    home: int | None = None,
    overflow: tuple[Callable[[], Card], str | int | None] | None = None,
) -> None:
    """Fit every network of `pipe`, which has the cards to itself; see `tightfit.fit`."""
    wish = BudgetWish.of(vram, reserve)
    refuse_known(pipe)
    _dtypes(pipe, compute)  # what is refused is, before a card is opened
    cards = open_all()
    budgets = [wish.on(each.name, each.read().total) for each in cards]
    several = len(cards) > 1
    shared = [
        SharedCard(card, budget, one_of_several=several, number=at if several else None)
        for at, (card, budget) in enumerate(zip(cards, budgets, strict=True))
    ]
    made = spread(pipe, shared, where, home=home)
    if overflow is not None:
        opens, size = overflow
        other = opens()
        found = next((each for each in shared if each.card.device == other.device), None)
        if found is not None and len(shared) == 1:
            raise UsageError(f"overflow is {other.name} itself: name another card.")
        budget = BudgetWish.of(size, None).on(other.name, other.read().total)
        made.overflow = found or SharedCard(other, budget, number=len(shared))
    keep(made, mode=mode, pack=pack, compute=compute)


def spread(
    pipe: Any,
    shared: Sequence[SharedCard],
    where: Mapping[str, int] | None = None,
    *,
    home: int | None = None,
) -> FittedPipeline:
    """`pipe`, not fitted yet, with each of its parts on one of these cards.

    `where` says which, by place, for parts that somebody has decided on, and `home` for the largest
    denoiser; the others go where most room is left (`tightfit.plan.cards`).

    Raises `UsageError` for parts and cards that are not there.
    """
    if len(shared) == 1 and not where:
        return FittedPipeline(pipe, shared[0])
    components = components_of(pipe)
    names = [each.name for each in components]
    for name, at in (where or {}).items():
        if name not in names:
            raise UsageError(f"`{name}` is no part of the pipeline: it has {', '.join(names)}.")
        if not 0 <= at < len(shared):
            raise UsageError(
                f"`{name}` is to be on card {at}, and there are {len(shared)}, counted from 0."
            )
    parts = [Part(each.name, weight_bytes(each.module), _role(each)) for each in components]
    found = on_cards(parts, [each.shelf.room() for each in shared], fixed=where, home=home)
    own = shared[found.home]
    elsewhere = {name: shared[at] for name, at in found.where.items() if at != found.home}
    return FittedPipeline(pipe, own, elsewhere)


def _role(component: Component) -> Role:
    if component.is_vae:
        return "vae"
    return "encoder" if component.runs_once else "denoiser"


def _codes_on(shared: SharedCard) -> Callable[[Taken], None]:
    return lambda taken: SharedVae(shared, taken).begin()


def keep(
    fitted: FittedPipeline,
    *,
    mode: str,
    pack: str,
    compute: str | Mapping[str, str] = "auto",
    label: str = "",
) -> None:
    """Fit it, and know it from then on."""
    refuse_known(fitted.pipe)
    fitted.open(mode=mode, pack=pack, compute=compute, label=label)
    with _guard:
        _known[id(fitted.pipe)] = fitted


def _dtypes(pipe: Any, compute: str | Mapping[str, str]) -> Mapping[str, str]:
    """By network, of those that are not to tell by their calls what they compute in.

    Raises `UsageError` for what is no network of `pipe`, for a VAE, and for unknown names.
    """
    networks = [each.name for each in components_of(pipe) if not each.is_vae]
    if isinstance(compute, str):
        if compute == "auto":
            return {}
        raise UsageError(
            f"compute of a pipeline is by network, such as {{'{networks[0]}': '{compute}'}}: "
            "steps and VAE have the dtype of what they are given."
        )
    for name, dtype in compute.items():
        if name not in networks:
            raise UsageError(
                f"compute is of networks that are no VAEs, here {', '.join(networks)}: not of "
                f"`{name}`."
            )
        dtype_of(dtype)
    return compute


def refuse_known(pipe: Any) -> None:
    """Raise `UsageError` for a pipeline that is fitted."""
    with _guard:
        if id(pipe) in _known:
            raise UsageError(f"`{type(pipe).__name__}` is fitted already: unfit it first.")


def unfit_pipeline(pipe: Any) -> None:
    """Give it back as it was. Raises `UsageError` for one that is not fitted."""
    forget(fitted_pipeline(pipe))


def forget(fitted: FittedPipeline) -> None:
    """Give its pipeline back, and know it no more. Raises `UsageError` in the middle of a call."""
    fitted.close()
    with _guard:
        if _known.get(id(fitted.pipe)) is fitted:
            del _known[id(fitted.pipe)]


def fitted_pipeline(pipe: Any) -> FittedPipeline:
    """What is done with `pipe`. Raises `UsageError` for one that is not fitted."""
    with _guard:
        found = _known.get(id(pipe))
    if found is None:
        raise UsageError(f"`{type(pipe).__name__}` is not fitted.")
    return found
