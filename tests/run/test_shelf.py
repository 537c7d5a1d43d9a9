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


def shelf(total: int, **taken: int) -> tuple[Shelf, dict[str, Fake]]:
    models = {name: Fake(size) for name, size in taken.items()}
    made = Shelf(Room(total, models))
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
