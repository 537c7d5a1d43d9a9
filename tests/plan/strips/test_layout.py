"""How high strips are, and what lies where."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.strips.networks import networks
from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.layout import SLOTS, Layout
from tightfit.plan.strips.network import Network
from tightfit.plan.strips.playing import Rates
from tightfit.plan.strips.reach import share
from tightfit.plan.strips.shelf import rounded
from tightfit.plan.strips.spans import strip_of, taken
from tightfit.plan.strips.stages import CONSTANTS, staged

RATES = Rates(1e12, 25e9)
FACTORS = st.floats(0.02, 2)
Place = tuple[int, int]


def _laying(network: Network, allocator: str = "exact") -> Laying:
    return Laying(network, staged(network), RATES, allocator)


def _room(network: Network, factor: float) -> int:
    return int(factor * sum(extent.bytes for extent in network.extents))


class _Play:
    """What lies where while the strips run, by the layout's own words."""

    def __init__(self, network: Network, layout: Layout) -> None:
        self.network, self.layout = network, layout
        self.kept: dict[int, dict[int, tuple[int, int]]] = {}  # value → strip → rows
        self.top = {"card": 0, "host": 0}
        self.fixed: dict[int, int] = {}
        self.moved = {"up": 0, "down": 0}
        given = network.given
        self.kept[given] = {0: (0, network.extents[given].rows)}

    def where(self, place: Place) -> str:
        """On the card, or on the host."""
        return "card" if place[1] < self.layout.on_card[place[0]] else "host"

    def piece(self, place: Place) -> tuple[int, int] | None:
        """(offset, bytes); None for what lies in memory of its own."""
        begin, end = self.kept[place[0]][place[1]]
        offset = self.layout.offsets.get(place)
        return None if offset is None else (offset, self.network.extents[place[0]].of(end - begin))

    def check(self) -> None:
        """No two of what is kept overlap, and all of it is inside."""
        for where in ("card", "host"):
            pieces = sorted(
                piece
                for value, strips in self.kept.items()
                for index in strips
                if self.where((value, index)) == where
                and (piece := self.piece((value, index))) is not None
                and piece[1]
            )
            end = 0
            for offset, size in pieces:
                assert offset >= end
                end = offset + size
            self.top[where] = max(self.top[where], end)

    def run(self) -> None:
        """Every strip in order."""
        network, layout = self.network, self.layout
        self.check()
        for laid in layout.stages:
            stage = laid.stage
            for value in stage.gathers:
                if layout.last.get(value) is not None and value in self.kept:
                    rows = sorted(self.kept[value].values())
                    assert sum(end - begin for begin, end in rows) == network.extents[value].rows
            for value in stage.keeps:
                self.kept[value] = {}
            for index, strip in enumerate(laid.strips):
                for value in stage.loads:
                    self.load(value, strip.spans.get(value), laid.load)
                for value in stage.keeps:
                    begin, end = strip.own[value]
                    size = network.extents[value].of(end - begin)
                    if value == network.result:
                        self.moved["down"] += size
                        if not layout.result_on_card:
                            assert size <= laid.store
                        continue
                    self.kept[value][index] = (begin, end)
                    if self.where((value, index)) == "host":
                        self.moved["down"] += size
                        assert size <= laid.store
                self.check()
                self.drop((stage.number, index))
            if not stage.in_strips:
                self.drop((stage.number, 0))

    def load(self, value: int, span: Place | None, buffer: int) -> None:
        """Its rows are kept, somewhere; what comes from the host passes through one buffer."""
        if span is None:
            return
        there: set[int] = set()
        coming = 0
        for index, (begin, end) in self.kept[value].items():
            rows = range(max(begin, span[0]), min(end, span[1]))
            there |= set(rows)
            if self.where((value, index)) == "host":
                coming += len(rows)
        assert set(range(*span)) <= there
        size = self.network.extents[value].of(coming)
        assert size <= buffer or not size
        self.moved["up"] += size

    def drop(self, after: Place) -> None:
        """What the layout calls dead."""
        for value, index in self.layout.dead.get(after, ()):
            del self.kept[value][index]


@given(networks(), FACTORS, st.booleans())
def test_what_is_kept_never_overlaps_and_is_there_when_it_is_read(
    network: Network, factor: float, given_on_card: bool
) -> None:
    """Played through, strip by strip, and every byte stays inside of what was said."""
    laying = _laying(network)
    layout = laying.within(_room(network, factor), given_on_card=given_on_card)
    assume(layout is not None)
    assert layout is not None
    play = _Play(network, layout)
    play.run()
    assert play.top["card"] <= layout.card_arena
    assert play.top["host"] <= layout.host_bytes
    assert rounded(play.top["host"]) == layout.host_bytes or layout.host_bytes == 0
    left = {v for v, strips in play.kept.items() if strips} - {network.given, network.result}
    assert not left
    rows = len(layout.stages) * max(1, layout.most_strips) * len(network.extents)
    assert abs(play.moved["up"] - layout.up) <= rows
    assert abs(play.moved["down"] - layout.down) <= rows


@given(networks(), FACTORS, st.booleans(), st.sampled_from(["exact", "native", "expandable"]))
def test_a_layout_takes_no_more_than_its_room(
    network: Network, factor: float, given_on_card: bool, allocator: str
) -> None:
    """Strips, what is kept, what is there all the time and what passes through, at any moment."""
    room = _room(network, factor)
    layout = _laying(network, allocator).within(room, given_on_card=given_on_card)
    assume(layout is not None)
    assert layout is not None
    assert layout.card_bytes <= room
    stages = staged(network)
    extents = network.extents
    for laid in layout.stages:
        stage = laid.stage
        if not stage.in_strips or len(laid.strips) > 7:  # of many, some are looked at
            continue
        most = max(taken(network, stage, strip).peak for strip in laid.strips)
        there = sum(extents[value].bytes for value in stage.gathers)
        there += sum(
            extents[value].bytes
            for value, made in stages.made.items()
            if (made % 2 or made == CONSTANTS)
            and made <= stage.number <= stages.last.get(value, -2)
        )
        there += extents[network.result].bytes if layout.result_on_card else 0
        passing = SLOTS * (laid.load + laid.store)
        assert most + there + layout.card_arena + passing <= layout.card_bytes


@given(networks(), FACTORS, FACTORS)
def test_more_room_is_never_too_little(network: Network, one: float, other: float) -> None:
    """Where there is a layout in some room, there is one in any larger."""
    small, large = sorted((_room(network, one), _room(network, other)))
    laying = _laying(network)
    if laying.within(small) is not None:
        assert laying.within(large) is not None


@given(networks())
def test_all_the_room_there_is_gives_one_strip_and_no_copies(network: Network) -> None:
    """Then a run in strips is a run of the whole."""
    layout = _laying(network).within(_room(network, 50) + 2**22)
    assert layout is not None
    assert layout.most_strips == 1
    assert layout.up == 0
    assert layout.host_bytes == 0
    assert layout.again == 0


@given(networks())
def test_nothing_is_found_below_the_least_room_and_something_above_it(network: Network) -> None:
    """What is kept on the card beside strips may take as much again."""
    laying = _laying(network)
    least = laying.least()
    assert least is not None
    assert laying.within(2 * least) is not None
    assert laying.within(least * 15 // 16) is None


@given(networks(), st.integers(1, 7))
def test_what_was_looked_at_stands_for_all_strips(network: Network, count: int) -> None:
    """A stage of few strips is weighed by all of them, one of many by some."""
    laying = _laying(network)
    for stage in staged(network).stages:
        if not stage.in_strips:
            continue
        each = [
            taken(network, stage, strip_of(network, stage, index, count)) for index in range(count)
        ]
        told = laying.costs.played(stage, count)
        assert max(one.peak for one in each) <= told.peak
        assert max(one.load for one in each) <= told.load
        assert max(one.store for one in each) <= told.store


@given(st.integers(1, 1000), st.integers(1, 50), st.integers(0, 50))
def test_shares_of_rows_begin_where_the_last_ended(rows: int, count: int, at: int) -> None:
    """So what stays on the card is one piece of the value from its beginning."""
    at = min(at, count - 1)
    assert share(rows, at, count)[0] == (share(rows, at - 1, count)[1] if at else 0)
