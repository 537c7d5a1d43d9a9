"""What moves as one, and when it has to be there."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import nn

from tests.streaming import Case, Foreign, Net, Table
from tightfit.errors import UsageError
from tightfit.place.streaming.berths import slot_of
from tightfit.place.streaming.groups import Group, card_bytes
from tightfit.weigh import weight_bytes, weights


def case_of(kinds: tuple[int, ...] = (0, 1, 2, 3)) -> Case:
    module = Net(16, kinds)
    return Case.of(module, lambda: module(torch.zeros(1, 16)))


def none_stays(case: Case, level: str) -> tuple[Group, ...]:
    return case.groups(case.everything(level, 2, lambda _: False))  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_every_tensor_is_in_one_group_and_ties_are_laid_out_once(level: str) -> None:
    """Each place that a tensor is held in leads to bytes of its size."""
    case = case_of()
    groups = none_stays(case, level)
    held = [held for group in groups for held in group.held]
    assert sorted(h.path for h in held) == sorted(h.path for h in weights(case.module))
    stored = sum(place.bytes for group in groups for place in group.layout.places)
    assert stored == weight_bytes(case.module)
    for group in groups:
        for each, at in zip(group.held, group.places, strict=True):
            assert group.layout.places[at].shape == each.tensor.shape


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_groups_of_one_ring_are_never_in_use_together(level: str) -> None:
    """No anchor of one is above an anchor of the other."""
    groups = none_stays(case_of(), level)
    for one, other in combinations(groups, 2):
        if one.ring == other.ring:
            for a in one.anchors:
                for b in other.anchors:
                    assert not f"{a}.".startswith(f"{b}.")
                    assert not f"{b}.".startswith(f"{a}.")


def test_tables_beside_layers_have_a_ring_of_their_own() -> None:
    """At the level of leaves; the most bytes are in the first ring."""
    module = nn.Sequential(Table(16), Table(16))
    case = Case.of(module, lambda: module(torch.zeros(1, 16)))
    rings = {group.name: group.ring for group in none_stays(case, "leaf")}
    assert rings == {"0": 1, "0.up": 0, "0.down": 0, "1": 1, "1.up": 0, "1.down": 0}
    assert {group.ring for group in none_stays(case, "block")} == {0}


def test_a_foreign_use_is_anchored_where_it_happens() -> None:
    """The block whose call reaches for the weight, so that its layer is there."""
    module = nn.Sequential(Foreign(16))
    case = Case.of(module, lambda: module(torch.zeros(1, 16)))
    anchors = {group.name: group.anchors for group in none_stays(case, "leaf")}
    assert anchors["0.proj"] == ("0.proj", "0")
    assert anchors["0.first"] == ("0.first",)


def test_what_is_told_for_a_card_is_what_is_taken_at_most() -> None:
    """Resident bytes, slots of the first ring, one slot of each further ring."""
    case = case_of()
    groups = case.groups(case.everything("leaf", 2, lambda at: at % 2 == 0))
    first = [group.layout.bytes for group in groups if not group.stays and not group.ring]
    second = [group.layout.bytes for group in groups if not group.stays and group.ring == 1]
    stays = sum(group.layout.bytes for group in groups if group.stays)
    assert second
    most = max(group.ring for group in groups if not group.stays)
    assert most == 1
    assert card_bytes(groups, slots=2) == stays + 2 * slot_of(first) + slot_of(second)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.to("meta"), r"`first.weight` is on meta"),
        (lambda m: setattr(m, "last", nn.LazyLinear(3)), r"`last.weight` has no shape yet"),
        (
            lambda m: setattr(m.last, "weight", nn.Parameter(torch.eye(16).to_sparse())),
            r"`last.weight` is laid out as torch.sparse_coo",
        ),
    ],
)
def test_what_cannot_move_as_bytes_is_refused_by_its_path(change: object, words: str) -> None:
    """And why."""
    case = case_of()
    residency = case.everything("block", 2, lambda _: False)
    change(case.module)  # type: ignore[operator]
    with pytest.raises(UsageError, match=words):
        case.groups(residency)
