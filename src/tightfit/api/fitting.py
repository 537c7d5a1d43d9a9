"""One module that is larger than its card, used as if it were not; `fits` is the door."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tightfit.adapters.gguf_types import refuse_unreadable
from tightfit.api.annexes import Overflow
from tightfit.card import Card, open_card
from tightfit.card.host_memory import read_host_memory
from tightfit.card.outlook import look
from tightfit.errors import UsageError
from tightfit.place.link import LinkRates, measure_link
from tightfit.place.slices import sliced
from tightfit.place.streaming.files import own_bytes
from tightfit.place.streaming.host_budget import pin_budget
from tightfit.place.streaming.pinned import Pins
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.plan.figure import Rate
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import MODES, Mode
from tightfit.plan.supply import Supply
from tightfit.run.fitting.entries import METHODS
from tightfit.run.fitting.fitted import Fitted
from tightfit.run.fitting.keeping import Terms
from tightfit.run.fitting.need import Call
from tightfit.run.fitting.placing import PACKS, Pack
from tightfit.run.planning.supplies import supply_of
from tightfit.weigh.conversions import COMPUTES, compute_in
from tightfit.weigh.tensors import weights

_known: dict[nn.Module, Fitted] = {}
"""A fitted module stays until it is unfitted: the driver holds its masters in place until then."""
_links: WeakKeyDictionary[Card, LinkRates] = WeakKeyDictionary()
_slices: dict[nn.Module, ExitStack] = {}
"""What puts layers that were cut together again."""
_guard = threading.Lock()


def fit(
    module: nn.Module,
    *,
    vram: str | int | None = None,
    card: str | Card | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    pack: str = "auto",
    compute: str = "auto",
    example: Mapping[str, Any] | Sequence[Any] | None = None,
    method: str = "forward",
    traces: bool = False,
    compares: bool = False,
    overflow: Overflow | None = None,
) -> nn.Module:
    """`tightfit.fit` of a module.

    Raises:
        UsageError: for a module that is fitted already, for weights that cannot be streamed (by
            their path), and for options that mean nothing.
        MemoryShortage: where not even streaming everything leaves the call enough.
    """
    _check_terms(mode, pack)
    if method not in ("forward", *METHODS):
        raise UsageError(f"method `{method}` is unknown: use forward, {', '.join(METHODS)}.")
    if method != "forward" and not callable(getattr(module, method, None)):
        raise UsageError(f"`{type(module).__name__}` has no method `{method}`.")
    refuse_unreadable(module)
    wish = BudgetWish.of(vram, reserve)
    opened = card if isinstance(card, Card) else open_card(card)
    amount = wish.on(opened.name, opened.read().total)
    call = None if example is None else _call(method, example)
    dtype = dtype_of(compute)
    _take(
        module,
        opened,
        amount,
        mode,
        pack,
        call,
        compute=dtype,
        traces=traces,
        compares=compares,
        overflow=overflow,
    )
    return module


def fit_at_rest(
    module: nn.Module,
    *,
    card: Card,
    budget: Budget,
    mode: str,
    pack: str,
    compute: torch.dtype | None = None,
    shares: bool = False,
    others: Callable[[], int] | None = None,
    once: bool = False,
    home: torch.device | None = None,
    overflow: Overflow | None = None,
) -> Fitted:
    """As `fit`, for somebody who has more models than this one: its first call brings it.

    Those that share have one master on the host for the same weights of the same file. `others` is
    how many bytes of host memory other models may still want; `once`, that a rest follows each call
    or two; `home`, the card that its callers believe it to be on, if that is another one.
    """
    _check_terms(mode, pack)
    refuse_unreadable(module)
    return _take(
        module,
        card,
        budget,
        mode,
        pack,
        None,
        compute=compute,
        at_rest=True,
        shares=shares,
        others=others,
        once=once,
        home=home,
        overflow=overflow,
    )


def one_dtype(compute: str | Mapping[str, str]) -> str:
    """What is said of a module. Raises `UsageError` for what is said of a pipeline's networks."""
    if isinstance(compute, str):
        return compute
    raise UsageError("compute of a module is one dtype, such as float32; by name of a pipeline.")


def dtype_of(compute: str) -> torch.dtype | None:
    """What a module is to compute in; None is that its calls tell.

    Raises `UsageError` for what is no such name.
    """
    if compute == "auto":
        return None
    names = {str(dtype).removeprefix("torch."): dtype for dtype in COMPUTES}
    if compute not in names:
        raise UsageError(f"compute `{compute}` is unknown: use auto, {', '.join(names)}.")
    return names[compute]


def _take(
    module: nn.Module,
    card: Card,
    budget: Budget,
    mode: str,
    pack: str,
    example: Call | None,
    *,
    compute: torch.dtype | None = None,
    at_rest: bool = False,
    shares: bool = False,
    traces: bool = False,
    compares: bool = False,
    others: Callable[[], int] | None = None,
    once: bool = False,
    home: torch.device | None = None,
    overflow: Overflow | None = None,
) -> Fitted:
    """Fit it; where that fails, it is nobody's."""
    refuse_unsupported(module, card)
    if compute is not None and not card.supports(compute):
        raise UsageError(f"{card.name} does not compute in {str(compute).removeprefix('torch.')}.")
    own = own_bytes(module)
    terms = Terms(
        _supply(card, budget, own=own),
        _mode(mode),
        pack=_pack(pack),
        pins=_pins(card, own=own),
        shares=shares,
        traces=traces,
        compares=compares,
        others=others,
        once=once,
        home=home,
    )
    why = None
    if overflow is not None:
        annexe, peer, why = overflow.for_card(card, terms.supply)
        terms = replace(terms, annexe=annexe, peer=peer)
    kept = Fitted(module, card, terms, turn=card.alone)
    kept.notes += [] if why is None else [why]
    _claim(module, kept)
    try:
        _slices[module] = stack = ExitStack()
        kept.notes += stack.enter_context(sliced(module, card.most_at_once))
        compute_in(module, compute)
        with card.alone():
            kept.open(example, at_rest=at_rest)
    except BaseException:
        _release(module)
        raise
    return kept


def _check_terms(mode: str, pack: str) -> None:
    if mode not in MODES:
        raise UsageError(f"mode `{mode}` is unknown: use {', '.join(MODES)}.")
    if pack not in PACKS:
        raise UsageError(f"pack `{pack}` is unknown: use {', '.join(PACKS)}.")


def unfit(module: nn.Module) -> nn.Module:
    """Give `module` back as it was before `fit`: on the host, hooks gone, the card's bytes freed.

    Raises `UsageError` for a module that is not fitted, and from within a call of it.
    """
    fitted(module).close()
    _release(module)
    return module


def fitted(module: nn.Module) -> Fitted:
    """What `fit` does with `module`: its plan, and what happened so far.

    Raises `UsageError` for a module that is not fitted.
    """
    found = _known.get(module)
    if found is None:
        raise UsageError(f"`{type(module).__name__}` is not fitted.")
    return found


def refuse_fitted(module: nn.Module) -> None:
    """Raise `UsageError` for a module that is fitted."""
    if module in _known:
        raise UsageError(f"`{type(module).__name__}` is fitted: unfit it first.")


def refuse_unsupported(module: nn.Module, card: Card) -> None:
    """Raise `UsageError` for weights in a dtype that `card` does not compute in, by their path."""
    for held in weights(module):
        if not card.supports(held.tensor.dtype):
            dtype = str(held.tensor.dtype).removeprefix("torch.")
            raise UsageError(
                f"`{type(module).__name__}.{held.path}` is in {dtype}, in which {card.name} does "
                "not compute: load the model in float16 or float32 (torch_dtype=…), or cast it "
                "first."
            )


@contextmanager
def placed(
    module: nn.Module,
    plan: Plan,
    *,
    stage: str | None = None,
    card: str | Card | None = None,
    example: Mapping[str, Any] | Sequence[Any] | None = None,
    method: str = "forward",
) -> Iterator[Fitted]:
    """While inside, the weights of `module` lie as `plan` says, whatever happens on the card.

    For whoever made the plan, and keeps to it; `fit` makes one and follows the room.

    Args:
        module: on the host; the plan is of this module.
        plan: which fits.
        stage: of the plan, whose residency counts; by default its only one.
        card: by default the plan's.
        example, method: see `fit`.

    Raises `UsageError` for a plan of something else, `MemoryShortage` for one that does not fit,
    and in calls what the card raises where it is full.
    """
    names = [each.demand.stage for each in plan.stages]
    if stage is None and len(names) != 1:
        raise UsageError(f"the plan has the stages {', '.join(names)}: say which, with stage=.")
    if stage is not None and stage not in names:
        raise UsageError(f"the plan has no stage `{stage}`: it has {', '.join(names)}.")
    if not plan.fits:
        raise plan.shortage()
    chosen = replace(plan, stages=(plan.stage(stage or names[0]),))
    wanted = card or plan.supply.card
    opened = wanted if isinstance(wanted, Card) else open_card(wanted)
    pins = _pins(opened, own=own_bytes(module))
    kept = Fitted(module, opened, Terms(plan.supply, plan.mode, chosen, pins=pins))
    with _claimed(module, kept):
        kept.open(None if example is None else _call(method, example))
        try:
            yield kept
        finally:
            kept.close()


@contextmanager
def _claimed(module: nn.Module, by: Fitted) -> Iterator[None]:
    """While inside, nobody else fits `module`."""
    _claim(module, by)
    try:
        yield
    finally:
        _release(module)


def _release(module: nn.Module) -> None:
    """It is nobody's, in one piece, and computes in what it is stored in."""
    compute_in(module, None)
    _slices.pop(module, ExitStack()).close()
    _known.pop(module, None)


def _claim(module: nn.Module, by: Fitted) -> None:
    with _guard:
        if module in _known:
            raise UsageError(f"`{type(module).__name__}` is fitted already: unfit it first.")
        for other in _known:
            for whole, part in ((module, other), (other, module)):
                path = next((path for path, each in whole.named_modules() if each is part), None)
                if path is not None:
                    raise UsageError(
                        f"`{path}` is a part of `{type(whole).__name__}`, and "
                        f"{'it' if part is other else 'that'} is fitted already: unfit it first."
                    )
        _known[module] = by


def _call(method: str, example: Mapping[str, Any] | Sequence[Any]) -> Call:
    if isinstance(example, Mapping):
        return Call(method, (), dict(example))
    if isinstance(example, Sequence) and not isinstance(example, (str, bytes)):
        return Call(method, tuple(example), {})
    raise UsageError(
        f"example is a {type(example).__name__}: give arguments by name in a dict, or in a tuple."
    )


def _mode(text: str) -> Mode:
    return next(mode for mode in MODES if mode == text)


def _pack(text: str) -> Pack:
    return next(pack for pack in PACKS if pack == text)


def _pins(card: Card, *, own: int) -> Pins:
    """Masters take the place of the `own` bytes that the module has in memory now."""
    if card.kind != "cuda":
        return Pins.none()
    return Pins.cuda(pin_budget(read_host_memory()) + own, device=card.device)


def link_of(card: Card) -> LinkRates:
    """Measured once for each opened card, however many networks come to it."""
    with _guard:
        known = _links.get(card)
    if known is not None:
        return known
    rates = measure_link(card.device, free=card.read().takeable)
    card.trim()
    if rates.pinned:  # else it is full, and may not be the next time
        with _guard:
            _links[card] = rates
    return rates


def _supply(card: Card, amount: Budget, *, own: int) -> Supply:
    """Rates as this machine measured them, else as the table has the card.

    The `own` bytes that the module has in host memory now are there for its masters.
    """
    supply = Supply(card.name, card.read().total, amount.budget, reserve=amount.reserve)
    with suppress(UsageError):
        supply = supply_of(look(card.name), amount, read_host_memory())
    supply = replace(supply, allocator=card.allocator)
    if supply.host is not None:
        host = supply.host
        supply = replace(
            supply,
            host=replace(
                host,
                available=host.available + own,
                cgroup_used=max(0, host.cgroup_used - own),
                pin_limit=None if host.pin_limit is None else host.pin_limit + own,
            ),
        )
    if card.kind == "cuda":
        rates = link_of(card)
        supply = replace(
            supply,
            link=Rate(float(rates.pinned), "measured") if rates.pinned else supply.link,
            staged=Rate(float(rates.pageable), "measured") if rates.pageable else supply.staged,
        )
    return supply
