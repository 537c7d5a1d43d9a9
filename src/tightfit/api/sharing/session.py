"""Several pipelines and modules that share cards: for applications."""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from torch import nn

from tightfit.adapters.live.pipeline import is_pipeline
from tightfit.api.fitting import one_dtype
from tightfit.api.sharing import pipelines
from tightfit.api.sharing.pipelines import FittedPipeline
from tightfit.api.sharing.shared_card import SharedCard, is_alone, unfit_alone
from tightfit.api.sharing.taken import Alone
from tightfit.card import Card, open_card
from tightfit.card.opener import open_cards
from tightfit.errors import UsageError
from tightfit.plan.budget import BudgetWish
from tightfit.units import format_bytes

T = TypeVar("T")


class Session:
    """Pipelines and modules that share one card, one budget, and one order of who makes room.

    ``with tightfit.Session(card="cuda:0", vram="8GiB") as s: s.fit(pipe); s.fit(module)``

    What is idle leaves the card to what works. Threads may call what they like: on one card, calls
    of networks come one after the other, so steps of two pipelines take turns. A part that two
    pipelines share is fitted once, and given back with the last of them. On several cards, the
    parts of a pipeline are spread over them.

    Attributes:
        notes: what was left on a card when the session closed.
    """

    def __init__(
        self,
        *,
        card: str | Card | None = None,
        cards: Sequence[str | Card] | str | None = None,
        vram: str | int | None = None,
        reserve: str | int | None = None,
    ) -> None:
        """Open the cards; nothing is placed yet.

        Args:
            card: ``cuda:0``, ``virtual:SIZE``, or an opened card; by default the first CUDA device.
            cards: several of them, as ``cuda:0,cuda:1``, ``virtual:2x6GiB``, or a list.
            vram: of each card, what may be used: bytes, or text such as ``6GiB``, ``80%``.
            reserve: bytes, or text, that are kept free for other programs.

        Raises `UsageError` for names that are no cards, and sizes that a card does not have.
        """
        self._reserve = reserve
        wish = BudgetWish.of(vram, reserve)
        opened = open_any(card, cards)
        several = len(opened) > 1
        self._shared = [
            SharedCard(
                each,
                wish.on(each.name, each.read().total),
                one_of_several=several,
                number=at if several else None,
            )
            for at, each in enumerate(opened)
        ]
        self._before = [each.card.read().allocated or 0 for each in self._shared]
        self._pipelines: list[FittedPipeline] = []
        self._modules: dict[nn.Module, SharedCard] = {}
        self._guard = threading.RLock()
        self._closed = False
        self.notes: list[str] = []

    def __enter__(self) -> Session:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; what could not be given back is said, beside an error that is on its way."""
        try:
            self.close()
        except UsageError as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def __repr__(self) -> str:
        names = ", ".join(each.named for each in self._shared)
        count = sum(len(each.models) for each in self._shared)
        return f"Session({names}: {count} models, budget {format_bytes(self.budget)})"

    @property
    def cards(self) -> tuple[Card, ...]:
        """Where it runs."""
        return tuple(each.card for each in self._shared)

    @property
    def budget(self) -> int:
        """Bytes of each card that may be used: of the one with the least, where they differ.

        May be set while calls run, by any thread: bytes, or text such as ``6GiB``. The next call of
        a network obeys it, which is the next step. What is idle leaves at once, if it has to.
        """
        return min(each.budget.budget for each in self._shared)

    @budget.setter
    def budget(self, vram: str | int) -> None:
        wish = BudgetWish.of(vram, self._reserve)
        budgets = [wish.on(each.card.name, each.card.read().total) for each in self._shared]
        for each, budget in zip(self._shared, budgets, strict=True):
            each.budget = budget

    def fit(
        self,
        x: T,
        *,
        card: int | Card | Mapping[str, int] | None = None,
        mode: str = "auto",
        pack: str = "auto",
        compute: str | Mapping[str, str] = "auto",
        overflow: int | Card | None = None,
    ) -> T:
        """Let `x` run on a card of this session; see `tightfit.fit`. It comes with its first call.

        Args:
            x: on the host: any `torch.nn.Module`, or a `DiffusionPipeline` of diffusers.
            card: of `cards`, which one; by its place, or itself. Of a pipeline, by the names of its
                parts, as in ``{"text_encoder": 1}``. What it does not say goes where most room is
                left, the parts of a pipeline each by itself.
            overflow: of `cards`, one on which what streams may lie, to be copied from there where
                that is faster than from the host. It takes what is free there, and leaves an eighth
                of the budget to what is done there.
            mode, pack, compute: see `tightfit.fit`. Where `x` is there already, the first two stay
                as they were.

        Returns `x` itself. Raises `UsageError` for what cannot be fitted, or is, by this session or
        by something else: then nothing of it has changed.
        """
        with self._guard:
            if self._closed:
                raise UsageError("the session is closed: open another.")
            self._pipelines = [each for each in self._pipelines if each.is_open]
            if is_pipeline(x):
                made = self._spread(x, card)
                made.overflow = None if overflow is None else self._on(overflow)
                pipelines.keep(
                    made, mode=mode, pack=pack, compute=compute, label=f"{self._label(x)}."
                )
                self._pipelines.append(made)
            elif isinstance(x, nn.Module):
                if x in self._modules and is_alone(x):
                    raise UsageError(f"`{type(x).__name__}` is fitted already: unfit it first.")
                dtype, shared = one_dtype(compute), self._for_module(card)
                other = None if overflow is None else self._on(overflow)
                if other is shared:
                    raise UsageError(f"overflow is {shared.named} itself: name another card.")
                shared.take(
                    x,
                    type(x).__name__,
                    Alone(),
                    mode=mode,
                    pack=pack,
                    compute=dtype,
                    overflow=other,
                )
                self._modules[x] = shared
            else:
                raise UsageError(
                    "fit takes a torch.nn.Module or a pipeline of diffusers, not a "
                    f"{type(x).__name__}."
                )
        return x

    def unfit(self, x: T) -> T:
        """Give `x` back as it was, but for parts that something else of the session still uses.

        Raises `UsageError` for what this session has not fitted, and from within a call of it.
        """
        with self._guard:
            found = next((each for each in self._pipelines if each.pipe is x), None)
            if found is not None:
                pipelines.forget(found)
                self._pipelines.remove(found)
            elif isinstance(x, nn.Module) and x in self._modules:
                unfit_alone(x)
                del self._modules[x]
            else:
                raise UsageError(f"`{type(x).__name__}` is not fitted by this session.")
        return x

    def fitted(self, pipe: Any) -> FittedPipeline:
        """What is done with a pipeline of this session; `tightfit.fitted` tells of both."""
        with self._guard:
            found = next((each for each in self._pipelines if each.pipe is pipe), None)
        if found is None:
            raise UsageError(f"`{type(pipe).__name__}` is not fitted by this session.")
        return found

    def free(self) -> int:
        """Everything that is idle leaves the card; it comes back with its next call.

        Bytes that came free, as the cards count tensors before and after. Waits for the call of a
        network that is under way, not for that of a pipeline.
        """
        return sum(each.free() for each in self._shared)

    def cancel(self) -> int:
        """Calls that are under way, in whichever threads, raise `Cancelled`; in how many there are.

        At the next safe point: before or after a step's network, or before the next tile of a VAE.
        Returns at once. Calls that begin later are not meant, and nothing of the session has to be
        made anew.
        """
        pipes = [each.pipe for each in self._pipelines]  # no wait for a `fit` under way
        return sum(
            each.cancel(lambda thing: any(thing is pipe for pipe in pipes)) for each in self._shared
        )

    def explain(self) -> str:
        """The ledger of each card, and a line for each model."""
        return "\n".join(each.explain() for each in self._shared)

    def close(self) -> int:
        """Give everything back, after the network's call that is under way; harmless when repeated.

        What is running then is cancelled. Bytes that came free, as the cards count tensors. More
        than when the session was opened is in `notes`: what calls returned is not ours to free.

        Raises `UsageError` for what could not be given back, when all others have been.
        """
        with self._guard:
            self._closed = True
            self.cancel()
            before = [each.card.read().allocated or 0 for each in self._shared]
            failed = [
                *(self._without(each.pipe) for each in self._pipelines[::-1]),
                *(self._without(each) for each in list(self._modules)[::-1]),
            ]
            freed = sum(map(self._left, self._shared, self._before, before))
        sentences = [each for each in failed if each]
        if sentences:
            raise UsageError(f"not all could be given back: {' '.join(sentences)}")
        return freed

    def _without(self, x: Any) -> str:
        """Unfit it; why not, where that failed."""
        try:
            self.unfit(x)
        except UsageError as error:
            return str(error)
        return ""

    def _left(self, shared: SharedCard, opened: int, before: int) -> int:
        card = shared.card
        shared.stopping.forget()
        card.trim()
        if (card.read().allocated or 0) > opened:
            gc.collect()
            card.trim()
        after = card.read().allocated or 0
        if after > opened:
            note = (
                f"{shared.named}: {format_bytes(after - opened)} more is held than at the beginning"
            )
            self.notes.append(note)
        return max(0, before - after)

    def _spread(self, pipe: Any, card: int | Card | Mapping[str, int] | None) -> FittedPipeline:
        """As `card` says, and what it does not say where most room is left."""
        if card is None or isinstance(card, Mapping):
            return pipelines.spread(pipe, self._shared, card)
        return FittedPipeline(pipe, self._on(card))

    def _for_module(self, card: int | Card | Mapping[str, int] | None) -> SharedCard:
        if isinstance(card, Mapping):
            raise UsageError("a card for each part is for a pipeline: a module is on one card.")
        if card is None:
            return max(self._shared, key=lambda each: each.shelf.room())
        return self._on(card)

    def _on(self, card: int | Card) -> SharedCard:
        for at, each in enumerate(self._shared):
            if card is each.card or (isinstance(card, int) and card == at):
                return each
        raise UsageError(
            f"the session has no card `{card}`: it has {len(self._shared)}, counted from 0."
        )

    def _label(self, pipe: Any) -> str:
        name = type(pipe).__name__
        same = sum(type(each.pipe) is type(pipe) for each in self._pipelines)
        return f"{name}-{same + 1}" if same else name


def open_any(
    card: str | Card | None, cards: Sequence[str | Card] | str | None = None
) -> tuple[Card, ...]:
    """The card, or several: by one name for all, such as ``cuda:0,cuda:1``, or one by one.

    Raises `UsageError` where both are given, or none, and for what is no card.
    """
    if card is not None and cards is not None:
        raise UsageError("card and cards are both given: one of them is enough.")
    if isinstance(card, Card):
        return (card,)
    if cards is None or isinstance(cards, str):
        return open_cards(card if cards is None else cards)
    found = tuple(each if isinstance(each, Card) else open_card(each) for each in cards)
    if len({each.device for each in found}) < len(found):
        raise UsageError("cards has one card twice: once is enough.")
    if not found:
        raise UsageError("cards names none: give one at least.")
    return found
