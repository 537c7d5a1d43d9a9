"""Single pieces of an input, each run where the network is, or one after the other in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch

from tightfit.plan.tiles import Span
from tightfit.run.delivery import Delivery, parts_of
from tightfit.run.intake import Fill

Call = Callable[[torch.Tensor], torch.Tensor]
Onward = Callable[[torch.Tensor, bool], torch.Tensor]
"""Goes on where the last call ended; True begins anew."""
Wider = Callable[[], AbstractContextManager[torch.dtype]]
"""While inside, the network computes in a dtype with more room for large values."""
Redone = Callable[[tuple[Span, ...], torch.dtype, bool], None]
"""Told where something was done again, in positions of the result, in what, and if it helped."""


@dataclass(frozen=True)
class Pieces:
    """How single pieces of an input are run.

    Attributes:
        call: runs one on the device.
        device: where.
        name: of the network, for errors.
        before_call: called before each call; may raise to stop.
        after_call: called after each.
        wider: for pieces whose result is not finite, where there is a wider dtype.
        redone: told about each of them.
        onward: runs one that follows the last, where the network can.
        done: called after the last of those that follow each other.
        stay: results stay on the device.
        steps: a context in which a call tells the pieces in time that it reads or makes.
    """

    call: Call
    device: torch.device
    name: str
    before_call: Callable[[], None] = lambda: None
    after_call: Callable[[], None] = lambda: None
    wider: Wider | None = None
    redone: Redone = lambda *_: None
    onward: Onward | None = None
    done: Callable[[], None] = lambda: None
    stay: bool = False
    steps: Callable[[Callable[[torch.Tensor], None]], AbstractContextManager[None]] | None = None

    def one(self, source: torch.Tensor, writes: tuple[Span, ...]) -> torch.Tensor:
        """The result of one contiguous piece, on the host (or not) as a tensor of its own.

        One that is not finite although its source is, is run again in a wider dtype: blended, it
        would spoil its neighbours, since ``0 × NaN`` is NaN.
        """
        (result,) = self.in_turn([source], [writes], self.call)
        return result

    def in_turn(
        self,
        sources: Sequence[torch.Tensor],
        writes: Sequence[tuple[Span, ...]],
        call: Call | None = None,
    ) -> list[torch.Tensor]:
        """The results of pieces that follow each other, each as of `one`."""
        results = self._each(sources, call)
        if self.wider is not None and not _finite(results) and _finite(sources):
            usual = results[0].dtype
            with self.wider() as dtype:
                again = self._each([source.to(dtype) for source in sources], call)
            results = [result.to(usual) for result in again]
            helped = _finite(results)
            for write in writes:
                self.redone(write, dtype, helped)
        for _ in sources:
            self.after_call()
        return results

    def given_away(
        self,
        sources: Sequence[torch.Tensor],
        writes: Sequence[tuple[Span, ...]],
        delivery: Delivery,
        shape: Callable[[tuple[Span, ...]], tuple[int, ...]],
    ) -> None:
        """Like `in_turn`, but each result goes to `delivery` as it comes.

        Where one is not finite, all begin anew in the wider dtype. `shape` is what is expected.
        """
        usual: list[torch.dtype] = []

        def run(given: Iterable[torch.Tensor], *, strict: bool) -> tuple[Span, ...] | None:
            delivery.begin()
            for source, write, result in zip(
                sources, writes, self._turns(given, None), strict=True
            ):
                self.expect(result, shape(write))
                usual.append(result.dtype)
                if strict and not _finite([result]) and _finite([source]):
                    return write
                delivery.take(result.to(usual[0]))
                self.after_call()
            return None

        bad = run(sources, strict=self.wider is not None)
        if bad is not None and self.wider is not None:
            with self.wider() as dtype:
                still = run((source.to(dtype) for source in sources), strict=False)
            self.redone(bad, dtype, still is None)
        self.done()

    def filled(self, fill: Fill) -> AbstractContextManager[None]:
        """While inside, a call's input is filled just before the network reads of it."""
        read = 0

        def tell(piece: torch.Tensor) -> None:
            nonlocal read
            read += piece.shape[2]
            fill(read)

        return nullcontext() if self.steps is None else self.steps(tell)

    def on_its_way(
        self, source: torch.Tensor, delivery: Delivery, sizes: tuple[int, ...]
    ) -> torch.Tensor | None:
        """Like `one`, but what a call makes goes to `delivery` before it makes the next.

        The result without its values; None where it was not made of what it told.
        """
        strict = self.wider is not None and _finite([source])
        usual: list[torch.dtype] = []

        def run(given: torch.Tensor, *, strict: bool) -> tuple[torch.Tensor | None, bool]:
            """The result, and whether all of it was finite, as far as it got."""
            assert self.steps is not None
            told, good = 0, True
            shape: tuple[int, ...] = ()

            def tell(made: torch.Tensor) -> None:
                nonlocal told, good
                usual.append(made.dtype)
                told += made.shape[2]
                good = good and (self.wider is None or _finite([made]))
                if strict and not good:
                    raise _NotFinite
                delivery.take(made.to(usual[0]))

            delivery.begin()
            self.before_call()
            with suppress(_NotFinite), torch.no_grad(), self.steps(tell):
                result = self.call(given.to(self.device).contiguous())
                self.expect(result, (1, result.shape[1], *sizes))
                shape = (0, *result.shape[1:])
                del result
            if told != sizes[0]:
                return None, good
            return torch.empty(shape, dtype=usual[0]), good

        left, good = run(source, strict=strict)
        if strict and not good and self.wider is not None:
            with self.wider() as dtype:
                left, helped = run(source.to(dtype), strict=False)
            self.redone(tuple(Span(0, size) for size in sizes), dtype, helped)
        if left is not None:
            self.after_call()
        return left

    def _each(self, sources: Sequence[torch.Tensor], call: Call | None) -> list[torch.Tensor]:
        results = list(self._turns(sources, call))
        if call is None:
            self.done()
        return results

    def _turns(self, sources: Iterable[torch.Tensor], call: Call | None) -> Iterator[torch.Tensor]:
        for at, source in enumerate(sources):
            self.before_call()
            with torch.no_grad():
                piece = source.to(self.device).contiguous()
                if call is not None:
                    result = call(piece)
                else:
                    assert self.onward is not None
                    result = self.onward(piece, at == 0)
                del piece
                on_host = result.device.type == "cpu"
                made = result.detach()
                made = made if self.stay else made.to("cpu", copy=on_host)
                del result
            yield made
            del made

    def expect(self, piece: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Raise `RuntimeError` naming both shapes where `piece` has another."""
        if tuple(piece.shape) != shape:
            raise RuntimeError(
                f"{self.name} gave {tuple(piece.shape)} where its traits promise {shape}"
            )


class _NotFinite(Exception):
    """What was made on the way to a result is to be made again, in a wider dtype."""


def _finite(values: Sequence[torch.Tensor]) -> bool:
    """Looked at in parts: on a card there may be no room for one more of them."""
    return all(bool(torch.isfinite(part).all()) for each in values for part in parts_of(each))
