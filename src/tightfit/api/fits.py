"""`fit`, `unfit` and `fitted`: a module, or a whole pipeline, that is larger than its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from torch import nn

from tightfit.adapters.live.pipeline import is_pipeline
from tightfit.api import fitting
from tightfit.api.annexes import Overflow
from tightfit.api.sharing import pipelines
from tightfit.api.sharing.pipelines import FittedPipeline
from tightfit.api.sharing.session import open_any
from tightfit.api.sharing.shared_card import unfit_alone
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.plan.budget import BudgetWish
from tightfit.run.fitting.fitted import Fitted

T = TypeVar("T")


def fit(
    x: T,
    *,
    vram: str | int | None = None,
    card: str | Card | Mapping[str, int] | None = None,
    cards: str | Sequence[str | Card] | None = None,
    reserve: str | int | None = None,
    mode: str = "auto",
    pack: str = "auto",
    compute: str | Mapping[str, str] = "auto",
    example: Mapping[str, Any] | Sequence[Any] | None = None,
    method: str = "forward",
    traces: bool = False,
    compares: bool = False,
    overflow: str | Card | None = None,
    overflow_vram: str | int | None = None,
) -> T:
    """Let `x` run on a card that is smaller than it, with the numbers it would have anyway.

    As many weights stay on the card as there is room for beside the call; the others lie in host
    memory, and are copied to the card just before they are used. Before each call the room is
    looked at again: when other programs take memory, or a larger input comes, weights leave the
    card, and come back when it has been free for a while. A call that runs out of memory all the
    same is made again with fewer weights on the card.

    Of a pipeline, every network is fitted, and those that are idle leave the card to the one at
    work. Its VAE codes by the ladder (`tightfit.decode`): whole, in exact strips, in tiles. The
    pipeline keeps its type and is called as ever, with tensors made on the card. On several cards,
    each network has one of them, and what they give is handed over: the pipeline works on that of
    its denoiser.

    Inputs on the host are brought to the card; results stay there. There are no gradients. Until
    `unfit`, a module stays in memory and on the card, even where nobody else has it any more.

    Args:
        x: on the host: any `torch.nn.Module`, or a `DiffusionPipeline` of diffusers.
        vram: of the card, what may be used: bytes, or text such as ``6GiB``, ``80%``; by default
            all that is free.
        card: ``cuda:0``, ``virtual:SIZE``, or an opened card; by default the first CUDA device.
            With `cards`, which of them a part of the pipeline is to be on, as in
            ``{"text_encoder": 1}``.
        cards: of a pipeline, several: ``cuda:0,cuda:1``, ``virtual:2x6GiB``, or a list. Its parts
            go where most room is left, denoisers first; `vram` and `reserve` are of each.
        reserve: bytes, or text, that are kept free for other programs.
        mode: ``auto``, ``high`` (all resident, or refused), ``low`` (only what saves time), or
            ``none`` (all streamed).
        pack: ``auto`` (weights are packed, without loss, where a call is the faster for it), ``on``
            (all that get smaller), or ``off``.
        compute: ``auto``, or the dtype that every call computes in, such as ``float32``, whatever
            it is given and its weights are stored in: they move as they are stored, and are widened
            just before a layer runs. Of a pipeline: by the names of its networks.
        example: of a module: arguments of a typical call, by name or in order; only their shapes
            are looked at. Without them the first call tells, and the weights are placed anew then.
        method: what `example` is for: ``forward``, ``encode`` or ``decode``.
        traces: of a module: keep what each step did, in ``fitted(module).session.steps``.
        compares: for finding faults: wait for each copy, and compare it with what was to arrive.
        overflow: another card, such as ``cuda:1``, on which lies what streams, to be copied from
            there instead of from the host where that is faster. Nothing is computed there.
        overflow_vram: of that, what may be used; by default all that is free.

    Returns:
        `x` itself, to be used as before. `unfit` gives it back as it was.

    Raises:
        UsageError: for what is fitted already, or placed by something else (an offload of
            diffusers or accelerate, by name), for weights that cannot be streamed (by their path),
            and for options that mean nothing.
        MemoryShortage: where not even streaming everything leaves the call enough.
    """
    terms: dict[str, Any] = {"vram": vram, "reserve": reserve, "mode": mode, "pack": pack}
    where, one = (card, None) if isinstance(card, Mapping) else (None, card)
    if is_pipeline(x):
        if example is not None or traces or compares:
            raise UsageError("example, traces and compares are of a module, not of a pipeline.")
        pipelines.fit_pipeline(
            x,
            compute=compute,
            open_all=lambda: open_any(one, cards),
            where=where,
            overflow=None if overflow is None else (lambda: open_any(overflow)[0], overflow_vram),
            **terms,
        )
        return x
    if not isinstance(x, nn.Module):
        raise UsageError(
            f"fit takes a torch.nn.Module or a pipeline of diffusers, not a {type(x).__name__}."
        )
    if cards is not None or where is not None:
        raise UsageError("cards are for a pipeline: a module computes on one card.")
    terms |= {"card": one, "method": method, "traces": traces, "compares": compares}
    if overflow is not None:
        other = open_any(overflow)[0]
        budget = BudgetWish.of(overflow_vram, None).on(other.name, other.read().total)
        terms["overflow"] = Overflow.all_of(other, budget)
    fitting.fit(x, example=example, compute=fitting.one_dtype(compute), **terms)
    return x


def unfit(x: T) -> T:
    """Give `x` back as it was before `fit`: on the host, hooks gone, the card's bytes freed.

    What a session fitted, too. Raises `UsageError` for what is not fitted, for a part of a pipeline
    that is, and from within a call of it.
    """
    if isinstance(x, nn.Module):
        if not unfit_alone(x):
            fitting.unfit(x)
    else:
        pipelines.unfit_pipeline(x)
    return x


@overload
def fitted(x: nn.Module) -> Fitted: ...
@overload
def fitted(x: Any) -> Any: ...
def fitted(x: object) -> Fitted | FittedPipeline:
    """What `fit` does with `x`: where its weights are, and what happened so far.

    Raises `UsageError` for what is not fitted.
    """
    return fitting.fitted(x) if isinstance(x, nn.Module) else pipelines.fitted_pipeline(x)
