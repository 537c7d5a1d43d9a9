"""Tensors in plain attributes of a module, which come along to the card with its weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tightfit.weigh.tensors import Held, Kind, identity, walk


def forget_graphs(module: nn.Module) -> None:
    """What is made anew from originals before each call holds on to them no more.

    It was made with gradients, where nobody has called the module yet; then the originals could not
    become tensors of a virtual card.
    """
    for held in list(walk(module)):
        if held.recomputed and held.tensor.grad_fn is not None:
            vars(held.owner)[held.name] = held.tensor.detach()


@dataclass(eq=False)
class _Table:
    """One that is on the card, or was and is to come back.

    Attributes:
        owner, name: the attribute.
        host: what it was on the host.
        there: what it is on the card; None while it is at home.
        made: a call had made it on the card, so `host` is a copy of ours.
    """

    owner: nn.Module
    name: str
    host: torch.Tensor
    there: torch.Tensor | None = None
    made: bool = False

    @property
    def now(self) -> object:
        """What the attribute is."""
        return vars(self.owner).get(self.name)

    def show(self, tensor: torch.Tensor) -> None:
        """Let the attribute be this."""
        vars(self.owner)[self.name] = tensor


class Tables:
    """Which of them are on the card; those within lists and dicts stay where they are."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._origins = {_key(held): held.tensor for held in walk(module) if _is_plain(held)}
        self._tables: list[_Table] = []

    @property
    def bytes(self) -> int:
        """Of those that are on the card."""
        return sum(each.there.nbytes for each in self._tables if each.there is not None)

    def bring(self, masters: Collection[Any]) -> None:
        """Put on the card what is on the host, and is none of `masters`, by identity."""
        for held in list(walk(self._module)):
            host = held.tensor.device.type == "cpu" and held.tensor.dim() > 0
            if not (_is_plain(held) and host) or held.recomputed:
                continue
            if identity(held.tensor) not in masters:
                table = _Table(held.owner, held.name, held.tensor)
                self._tables.append(table)
                self._send(table)

    def bring_again(self) -> None:
        """Put on the card what went home."""
        for each in self._tables:
            if each.there is None:
                self._send(each)

    def go_home(self, own: Collection[int]) -> None:
        """Let the card go: what came from the host is what it was, what calls made is copied.

        `own` are the ids of tensors that are no tables. Harmless when repeated.
        """
        for each in list(self._tables):
            if each.there is None and each.now is each.host:
                continue
            if each.now is each.there:
                each.show(each.host)
                each.there = None
            else:  # a call has made another
                self._tables.remove(each)
        for held in list(walk(self._module)):
            if not _is_plain(held) or held.tensor.device != self._device or id(held.tensor) in own:
                continue
            origin = self._origins.get(_key(held))
            if held.recomputed and origin is not None and origin.device != self._device:
                vars(held.owner)[held.name] = origin
                continue
            table = _Table(held.owner, held.name, held.tensor.to("cpu"), made=True)
            if not held.recomputed:
                self._tables.append(table)
            table.show(table.host)

    def look(self) -> None:
        """Before a call: put back what was exchanged for what it was on the host, as after a try
        that ran out of memory; forget what has become something else."""
        for each in list(self._tables):
            if each.now is each.there:
                continue
            if each.now is each.host and each.there is not None:
                each.show(each.there)
            else:
                self._tables.remove(each)

    def put_back(self) -> None:
        """At the end: a copy that is at home makes way for what the attribute was at first."""
        for each in self._tables:
            origin = self._origins.get((id(each.owner), each.name))
            if each.made and each.now is each.host and origin is not None:
                each.show(origin)
        self._tables.clear()

    def _send(self, table: _Table) -> None:
        table.there = table.host.to(self._device)
        table.show(table.there)


def _is_plain(held: Held) -> bool:
    return held.kind is Kind.ATTRIBUTE and not held.steps


def _key(held: Held) -> tuple[int, str]:
    return id(held.owner), held.name
