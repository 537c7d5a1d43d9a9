"""Who makes room for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.run.shelf import Shelf


@dataclass
class Fake:
    """A model that takes what it is told to."""

    taken: int = 0
    busy: bool = False
    rested: int = 0

    def rest(self) -> int:
        if self.busy:
            return 0
        freed, self.taken = self.taken, 0
        self.rested += 1
        return freed


@dataclass
class Room:
    """A card of so many bytes."""

    total: int
    models: dict[str, Fake] = field(default_factory=dict)

    def __call__(self) -> int:
        return self.total - sum(model.taken for model in self.models.values())


@dataclass
class Clock:
    """Goes on by so many seconds whenever it is looked at."""

    step: float = 1.0
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def shelf(total: int, *, step: float = 1.0, **taken: int) -> tuple[Shelf, dict[str, Fake]]:
    """Every call takes `step` seconds."""
    models = {name: Fake(size) for name, size in taken.items()}
    made = Shelf(Room(total, models), clock=Clock(step))
    made.models.update(models)
    return made, models


def test_nobody_rests_where_there_is_room() -> None:
    """A model that fits beside the others leaves them alone."""
    made, models = shelf(100, a=40, b=40)
    assert made.comes("c", lambda: 20) == 0
    assert [model.rested for model in models.values()] == [0, 0]


def test_the_one_that_was_idle_longest_rests_first() -> None:
    """And only as many as are needed."""
    made, models = shelf(100, a=40, b=40)
    made.comes("a", lambda: 0)
    made.comes("b", lambda: 0)
    assert made.comes("c", lambda: 50) == 40
    assert (models["a"].taken, models["b"].taken) == (0, 40)


def test_whatever_is_given_helps() -> None:
    """A model that is larger than the card gets all that others can give."""
    made, _ = shelf(100, a=40, b=40)
    assert made.comes("c", lambda: 1000) == 80
    assert made.notes == ["`a` rests while `c` runs", "`b` rests while `c` runs"]


def test_two_that_take_turns_do_not_send_each_other_away() -> None:
    """A control network and its denoiser share the card from the second turn on."""
    made, models = shelf(100, denoiser=0, control=0)
    for _ in range(6):
        for name, size in (("control", 40), ("denoiser", 90)):
            lacking = size - models[name].taken
            made.comes(name, lambda lacking=lacking: lacking)
            models[name].taken = min(size, made.room() + models[name].taken)
    assert models["control"].rested <= 2
    assert models["denoiser"].rested <= 2


def test_an_encoder_rests_while_steps_go_on() -> None:
    """It is not needed between two of them, though it comes again with every picture."""
    made, models = shelf(100, encoder=0, denoiser=0)
    for _ in range(3):
        made.comes("encoder", lambda: 60)
        models["encoder"].taken = 60
        models["denoiser"].taken = 0
        for _ in range(4):
            lacking = 90 - models["denoiser"].taken
            made.comes("denoiser", lambda lacking=lacking: lacking)
            models["denoiser"].taken = min(90, made.room() + models["denoiser"].taken)
        assert models["encoder"].taken == 0


def test_a_model_at_work_stays() -> None:
    """What it gives is nothing, and others are asked."""
    made, models = shelf(100, a=40, b=40)
    models["a"].busy = True
    assert made.needs("c", 60) == 40
    assert models["a"].taken == 40


def test_a_need_that_nobody_knows_takes_all_there_is() -> None:
    """Before what may take anything, such as a VAE that is run as it is written."""
    made, _ = shelf(100, a=40, b=40)
    assert made.needs("c", None) == 80


def test_what_is_needed_in_two_seconds_is_not_sent_away_for_comfort() -> None:
    """Once the order is known, by the second picture; what cannot run otherwise gets room."""
    for step, stays in ((0.1, True), (1.0, False)):
        made, models = shelf(100, step=step, denoiser=0, encoder=0)
        for _ in range(2):
            made.comes("encoder", lambda: 0)
            for _ in range(5):
                made.comes("denoiser", lambda: 0)
        models["encoder"].taken = 60
        made.comes("encoder", lambda: 0)
        assert made.comes("denoiser", lambda: 50) == (0 if stays else 60)
        models["encoder"].taken = 60
        assert made.needs("denoiser", 50) == 60


def test_two_calls_are_not_worth_a_model_that_would_have_to_come_back() -> None:
    """Both ways it is copied as often as what streams in them; three are."""
    for calls, stays in ((2, True), (3, False)):
        made, models = shelf(100, step=10.0, encoder=0, denoiser=90)
        for _ in range(2):
            for _ in range(calls):
                made.comes("encoder", lambda: 0)
            made.comes("denoiser", lambda: 0)
        assert made.comes("encoder", lambda: 50) == (0 if stays else 90)
        assert models["denoiser"].rested == (0 if stays else 1)


def test_a_model_stays_that_would_not_be_back_in_time() -> None:
    """By the rate of the link."""
    for link, stays in ((None, False), (100.0, False), (10.0, True)):
        made, models = shelf(100, denoiser=0, encoder=0)
        made.link = link
        for _ in range(2):
            made.comes("encoder", lambda: 0)
            for _ in range(5):
                made.comes("denoiser", lambda: 0)
        models["encoder"].taken = 60
        made.comes("encoder", lambda: 0)
        assert made.comes("denoiser", lambda: 50) == (0 if stays else 60)


def test_who_is_needed_last_goes_first() -> None:
    """Not who was used first, where the order is known."""
    made, models = shelf(100, early=0, late=0, main=0)
    for _ in range(3):  # early is used before late, and late comes again after it
        for name in ("late", "early", "main", "main", "main", "early"):
            made.comes(name, lambda: 0)
    models["early"].taken = models["late"].taken = 40
    made.comes("late", lambda: 0)
    made.comes("early", lambda: 0)
    made.comes("main", lambda: 0)
    assert made.needs("main", 50) == 40
    assert (models["early"].taken, models["late"].taken) == (40, 0)


def test_the_outlook_is_how_it_was_the_last_time() -> None:
    """Calls that remain, and seconds; unknown where it never was so."""
    made, _ = shelf(100)
    assert made.outlook("a", "b") is None
    for name in ("b", "a", "a", "a", "b"):
        made.comes(name, lambda: 0)
    for at, calls in ((1, 3), (2, 2), (3, 1)):
        made.comes("a", lambda: 0)
        found = made.outlook("a", "b")
        assert found is not None
        assert (found.calls, found.seconds) == (calls, 4.0 - at)
    made.comes("a", lambda: 0)
    assert made.outlook("a", "b") is None


def test_what_is_over_a_smaller_budget_leaves() -> None:
    """As much as that, and whoever is named stays."""
    made, models = shelf(100, a=40, b=40, c=20)
    for name in ("b", "a"):
        made.comes(name, lambda: 0)
    assert made.gives("c", 30) == 40
    assert [models[name].taken for name in "abc"] == [40, 0, 20]
