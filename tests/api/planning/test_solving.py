"""The smallest card, the largest picture, the longest clip."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tightfit
from tests.api.model_files import model_file
from tightfit.api.planning import planning
from tightfit.api.planning.planning import ask
from tightfit.api.planning.question import Question
from tightfit.api.planning.solving import answer
from tightfit.card.host_memory import HostMemory
from tightfit.card.known import known_cards
from tightfit.errors import UsageError
from tightfit.plan.describe import at_least
from tightfit.plan.size import LARGEST_SIDE, Size
from tightfit.units import GIB, MIB

HOST = HostMemory(64 * GIB, 48 * GIB, None, None)


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same host everywhere."""
    monkeypatch.setattr(planning, "read_host_memory", lambda: HOST)


def fits(question: Question, size: Size) -> bool:
    """Whether the card holds a job of `size`."""
    return question.sized(size).plan().fits


def solved_size(question: Question, kind: str) -> Size:
    """The answer, at which the question was asked again."""
    found = answer(question, kind)
    assert found.found
    assert found.question.plan().fits
    return found.question.size


@pytest.mark.parametrize(
    ("name", "dtype", "card", "mode"),
    [
        ("flux", "BF16", "virtual:rtx-3060", "auto"),
        ("flux", "BF16", "virtual:rtx-3060", "high"),
        ("flux2", "F8_E4M3", "virtual:24GiB", "low"),
        ("wan14", "BF16", "virtual:24GiB,allocator=async", "none"),
        ("flux-vae", "BF16", "virtual:rtx-3060", "auto"),
        ("sdxl", "F16", "virtual:rtx-3060", "auto"),
    ],
)
def test_the_smallest_budget_is_tight(
    tmp_path: Path, name: str, dtype: str, card: str, mode: str
) -> None:
    """The job fits it, and not one MiB less."""
    question = ask(model_file(tmp_path, name, dtype), card=card, mode=mode)
    value = answer(question, "vram").value
    assert isinstance(value, int)
    assert question.budgeted(value).plan().fits
    assert not question.budgeted(value - MIB).plan().fits


def test_the_smallest_budget_is_what_a_plan_on_a_bare_card_needs(tmp_path: Path) -> None:
    """To the MiB; and the sentence never says less than it is."""
    path = model_file(tmp_path, "flux")
    found = answer(ask(path, vram="6GiB"), "vram")
    assert isinstance(found.value, int)
    assert tightfit.make_plan(path, vram=found.value).fits
    assert not tightfit.make_plan(path, vram=found.value - MIB).fits
    assert f"1024x1024: {at_least(found.value)}" in found.sentence
    assert found.question.plan().supply.budget == found.value


def test_context_and_reserve_come_on_top_of_the_smallest_budget(tmp_path: Path) -> None:
    """The card has to have them too, and the budget does not."""
    path = model_file(tmp_path, "flux")
    plain, kept = (
        answer(ask(path, card="virtual:rtx-3060", reserve=reserve), "vram")
        for reserve in (None, "3GiB")
    )
    assert plain.value == kept.value
    supply = kept.question.plan().supply
    assert isinstance(kept.value, int)
    assert supply.total == kept.value + 400 * MIB + 3 * GIB
    assert set(kept.cards) != set(plain.cards)


def test_the_smallest_cards_are_those_of_the_table_that_do(tmp_path: Path) -> None:
    """Each as it is, and none that is smaller; those that do not compute as the weights do not."""
    path = model_file(tmp_path, "wan14")
    found = answer(ask(path, vram="24GiB"), "vram")
    assert len(found.cards) == 4
    table = {card.name: card for card in known_cards()}
    largest = max(table[name].total for name in found.cards)
    for name, card in table.items():
        if card.bf16 is not False and card.total < largest:
            fits_it = tightfit.make_plan(path, card=f"virtual:{name}").fits
            assert fits_it == (name in found.cards), name
    assert all(tightfit.make_plan(path, card=f"virtual:{name}").fits for name in found.cards)
    assert "with bfloat16" in found.sentence
    assert ", ".join(found.cards) in found.sentence


def test_cards_without_bfloat16_count_where_none_is_needed(tmp_path: Path) -> None:
    """Weights in float16 compute everywhere."""
    found = answer(ask(model_file(tmp_path, "t5", "F16"), vram="24GiB"), "vram")
    assert "gtx-1060-3gb" in found.cards
    assert "bfloat16" not in found.sentence


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flux", {"card": "virtual:rtx-3060"}),
        ("flux", {"vram": "2GiB"}),
        ("flux", {"card": "virtual:rtx-3060", "mode": "none", "batch": 2}),
        ("flux-vae", {"vram": "3GiB", "tile": "off"}),
        ("flux", {"vram": "3GiB", "width": 1920, "height": 1088}),
        ("ltx", {"vram": "4GiB"}),
        ("wan14", {"card": "virtual:rtx-4060"}),
    ],
)
def test_the_largest_picture_is_tight(
    tmp_path: Path, name: str, options: dict[str, str | int]
) -> None:
    """It fits in its ratio, and one step more does not; a plan of that size says the same."""
    path = model_file(tmp_path, name)
    question = ask(path, **options)  # type: ignore[arg-type]
    size = solved_size(question, "size")
    step = max(16, question.models[0].steps.side)
    assert size.width % step == size.height % step == 0
    assert size.frames == question.size.frames
    ratio = question.size.height / question.size.width
    assert abs(size.height - size.width * ratio) <= step
    wider = replace(
        size,
        width=size.width + step,
        height=max(1, round((size.width // step + 1) * ratio)) * step,
    )
    assert not fits(question, wider)
    sides = {"width": size.width, "height": size.height}
    assert ask(path, **{**options, **sides}).plan().fits  # type: ignore[arg-type]


def test_the_longest_clip_is_tight(tmp_path: Path) -> None:
    """In the frames that the network takes."""
    for name, step in (("wan14", 4), ("ltx", 8)):
        path = model_file(tmp_path, name)
        question = ask(path, card="virtual:rtx-4060")
        found = answer(question, "frames")
        size = solved_size(question, "frames")
        assert found.value == size.frames
        assert (size.frames - 1) % step == 0
        assert not fits(question, replace(size, frames=size.frames + step))
        assert tightfit.make_plan(path, card="virtual:rtx-4060", frames=size.frames).fits
        assert f"The longest clip on virtual:rtx-4060: {size}" in found.sentence


def test_the_answer_is_the_size_that_is_told(tmp_path: Path) -> None:
    """The heading, the figures and the notes are those of the answer, not of the question."""
    question = ask(model_file(tmp_path, "flux"), vram="2GiB", width=1000, height=1000)
    assert question.notes[0] == "1000x1000 is padded to 1008x1008"
    found = answer(question, "size")
    assert isinstance(found.value, Size)
    assert found.question.heading.endswith(f"at {found.value}")
    assert "padded" not in " ".join(found.question.notes)
    values = found.question.as_dict()
    assert values["size"]["width"] == found.value.width
    assert found.as_dict()["value"] == values["size"]


def test_where_nothing_fits_there_is_no_answer(tmp_path: Path) -> None:
    """The plan of what was asked stays, to say why."""
    path = model_file(tmp_path, "flux")
    tiny = answer(ask(path, vram="64MiB"), "size")
    assert (tiny.value, tiny.found) == (None, False)
    assert tiny.sentence == "Not even the smallest picture fits virtual:64MiB."
    assert not tiny.question.plan().fits
    clip = answer(ask(model_file(tmp_path, "wan14"), vram="64MiB"), "frames")
    assert clip.sentence == "Not even the smallest clip fits virtual:64MiB."


def test_an_answer_at_the_end_of_the_search_says_so(tmp_path: Path) -> None:
    """More was not looked at."""
    vae = answer(ask(model_file(tmp_path, "flux-vae"), vram="24GiB"), "size")
    assert vae.value == Size(LARGEST_SIDE, LARGEST_SIDE)  # in tiles, any picture is coded
    assert "nothing beyond it was looked at" in vae.sentence


def test_sides_end_where_a_position_table_does(tmp_path: Path) -> None:
    """However much memory there is: beyond it the network cannot be asked."""
    question = ask(model_file(tmp_path, "wan1.3"), vram="2TiB", frames=1, width=512, height=512)
    assert solved_size(question, "size") == Size(16384, 16384)


@pytest.mark.parametrize("kind", ["size", "frames"])
def test_what_is_not_predicted_cannot_be_searched(tmp_path: Path, kind: str) -> None:
    """Any size would fit; the smallest budget is told as far as it is known."""
    question = ask(model_file(tmp_path, "unknown"), vram="1GiB")
    with pytest.raises(UsageError, match="what unknown needs beside its weights is not predicted"):
        answer(question, kind)
    found = answer(question, "vram")
    assert found.value == MIB
    assert "as far as it is predicted" in found.sentence


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("flux", "frames", r"flux\.1-dev/transformer makes pictures; use --solve size"),
        ("flux-vae", "frames", "flux-vae makes pictures"),
        ("t5", "size", "t5-xxl sees no picture"),
        ("t5", "frames", "t5-xxl sees no picture"),
        ("flux", "time", "use vram, size, frames"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    tmp_path: Path, name: str, kind: str, words: str
) -> None:
    """In one sentence that says what could be asked."""
    with pytest.raises(UsageError, match=words):
        answer(ask(model_file(tmp_path, name), vram="8GiB"), kind)
