"""Switches for virtual cards, as context managers that put back what they changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Literal

from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.faults import Form, Planned


@contextmanager
def faults(
    card: VirtualCard,
    *,
    delayed_frees: bool | None = None,
    spill: bool | None = None,
    max_allocation: int | None = None,
    element_ceiling: int | None = None,
    workspace: Callable[[str, int], int] | None = None,
    silent_workspace: bool | None = None,
    on_allocate: Callable[[str, int], None] | None = None,
    lanes: bool | Literal["strict"] | None = None,
    lane_seed: int | None = None,
) -> Iterator[None]:
    """Turn faults of `card` on while inside; what each means: `card.virtual.faults.Faults`."""
    wanted = {
        "delayed_frees": delayed_frees,
        "spill": spill,
        "max_allocation": max_allocation,
        "element_ceiling": element_ceiling,
        "workspace": workspace,
        "silent_workspace": silent_workspace,
        "on_allocate": on_allocate,
        "lanes": lanes,
        "lane_seed": lane_seed,
    }
    assert wanted.keys() <= {each.name for each in fields(card.faults)}
    before = {name: getattr(card.faults, name) for name in wanted}
    for name, value in wanted.items():
        if value is not None:
            setattr(card.faults, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(card.faults, name, value)


@contextmanager
def oom_after(
    card: VirtualCard, allocations: int, *, form: Form | str = Form.TORCH, late: bool = False
) -> Iterator[None]:
    """While inside, the allocation after so many good ones fails, once, in the given form.

    A `late` failure is raised at the next synchronisation instead.
    """
    planned = Planned(allocations, Form(form), late)
    card.faults.planned.append(planned)
    try:
        yield
    finally:
        if planned in card.faults.planned:
            card.faults.planned.remove(planned)


@contextmanager
def other_program(card: VirtualCard, size: int) -> Iterator[None]:
    """While inside, another program holds `size` bytes of the card."""
    card.occupy(size)
    try:
        yield
    finally:
        card.vacate(size)
