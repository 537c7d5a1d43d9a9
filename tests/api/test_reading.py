"""Sources that are read by a thread of their own."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.media.makers import cut, grey_frames, write_film
from tightfit.api import Watching, reading
from tightfit.api.reading import OtherLength, Reading
from tightfit.api.sources import Selection
from tightfit.card import open_card
from tightfit.errors import Cancelled, InputError, MemoryShortage, UsageError
from tightfit.media import clip as clips
from tightfit.media.clip import read_clip
from tightfit.run.vae import Traits
from tightfit.testing import toy_vae

CARD = "virtual:1GiB"
PICTURES = Traits("P", 8)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    """Whatever happened."""
    before = set(threading.enumerate())
    yield
    assert not [each for each in set(threading.enumerate()) - before if "tightfit" in each.name]


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """22 frames of 40x24."""
    return write_film(tmp_path / "a.mp4", grey_frames(22, 40, 24))


def encoded(source: Any, **options: Any) -> Any:
    return tightfit.encode(source, vae=toy_vae("V3", width=8), card=CARD, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"frames": "3:20:2"}, {"pad": "trim"}, {"tile": "5x64x64"}, {"fps": Fraction(7)}],
    ids=str,
)
def test_a_clip_that_is_encoded_while_it_comes_is_that_which_was_read_before(
    film: Path, options: dict[str, Any]
) -> None:
    """The same bits, whatever is asked of it and however it is cut; and the same report."""
    frames = slice(3, 20, 2) if "frames" in options else None
    pixels = read_clip(film, frames=frames, fps=options.get("fps")).pixels
    rest = {key: value for key, value in options.items() if key in ("pad", "tile")}
    expected, made = encoded(pixels, **rest), encoded(film, **options)
    assert torch.equal(made.value.latent, expected.value.latent)
    assert made.report.adjusted == expected.report.adjusted
    assert made.report.input["frames"] == expected.report.input["frames"] == len(pixels)
    assert made.report.ledger == expected.report.ledger
    assert made.report.after_bytes == 0


@pytest.mark.parametrize("claimed", [9, 40])
def test_a_header_that_counts_wrongly_costs_time_alone(
    film: Path, claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer frames or more: all that are there are encoded, as they would be."""
    expected = encoded(read_clip(film).pixels)
    monkeypatch.setattr(clips, "_expected", lambda *_: claimed)
    made = encoded(film)
    assert torch.equal(made.value.latent, expected.value.latent)
    assert made.value.frames == 22
    assert made.report.adjusted == expected.report.adjusted
    assert made.report.output == expected.report.output


def test_no_room_for_frames_that_a_header_made_up_is_no_reason_to_refuse(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip as it is has room."""
    expected = encoded(read_clip(film).pixels)
    monkeypatch.setattr(clips, "_expected", lambda *_: 10**6)
    assert torch.equal(encoded(film).value.latent, expected.value.latent)


def test_a_clip_that_is_cut_off_ends_the_encode_with_its_name(film: Path) -> None:
    """Found while it was being encoded; nothing is held."""
    card = open_card(CARD)
    with pytest.raises(InputError, match=r"a\.mp4.*cut off"):
        tightfit.encode(cut(film, 0.6), vae=toy_vae("V3", width=8), card=card)
    assert card.read().allocated == 0


def test_a_refusal_for_want_of_memory_says_what_was_read(film: Path) -> None:
    """Its report has the input and what was done to it."""
    with pytest.raises(MemoryShortage) as refused:
        tightfit.encode(film, vae=toy_vae("V3", width=8), card="virtual:64KiB")
    report: Any = refused.value.report
    assert report.input["frames"] == 22
    assert report.adjusted[0].startswith("padded 22 frames to 25")


def test_a_job_that_waits_for_frames_can_be_cancelled(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is slow; nobody waits for it to end."""
    watching, laid = Watching(), Reading.laid
    never = threading.Event()

    def slow(self: Reading, count: int, size: int) -> None:
        laid(self, count, size)
        if count == 3:
            watching.cancel.set()
            while not self._closed:
                never.wait(0.01)

    monkeypatch.setattr(Reading, "laid", slow)
    with pytest.raises(Cancelled):
        encoded(film, watching=watching)


def test_what_is_read_ahead_is_bounded(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its turn comes."""
    monkeypatch.setattr(reading, "AHEAD", 5 * 3 * 40 * 24)
    with Reading(film, Selection(), ahead=True) as ahead:
        ahead.whom(PICTURES)
        coming = ahead.coming()
        assert coming is not None
        assert coming.shape == (22, 3, 24, 40)
        assert ahead.frames(6, lambda: None) == 6
        ahead._thread.join(0.1)
        assert ahead._laid == 6
        ahead.go()
        assert ahead.frames(22, lambda: None) == 22
        assert ahead.footage().frames.shape == coming.shape
        with pytest.raises(OtherLength):
            ahead.frames(23, lambda: None)


def test_what_nobody_wants_any_more_is_not_read(film: Path) -> None:
    """Closed before anybody said whom it is for, and in the middle of waiting for its turn."""
    with Reading(film, Selection(), ahead=True) as unwanted:
        assert unwanted.seen() is not None
    assert not unwanted._thread.is_alive()


def test_errors_of_a_source_are_raised_to_who_asks(tmp_path: Path) -> None:
    """By each who asks, and in the order in which they can be known."""
    with Reading(tmp_path / "missing.mp4", Selection()) as missing:
        for ask in (missing.seen, missing.coming, missing.footage):
            with pytest.raises(InputError, match="missing"):
                ask()
    with pytest.raises(UsageError, match="holds values"):
        encoded(torch.zeros(0, 3, 8, 8))


def test_a_long_clip_is_kept_as_bytes(tmp_path: Path) -> None:
    """Until it is on the card: a pixel is three bytes, not three floats."""
    path = write_film(tmp_path / "a.mp4", grey_frames(5, 16, 16))
    with Reading(path, Selection()) as whole:
        whole.whom(PICTURES)
        assert whole.footage().frames.dtype == torch.uint8
