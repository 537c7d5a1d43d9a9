"""Which networks lie on which card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.cards import OnCards, Part, on_cards
from tightfit.units import GIB

FLUX = (
    Part("text_encoder", GIB // 4, "encoder"),
    Part("text_encoder_2", 9 * GIB, "encoder"),
    Part("transformer", 22 * GIB, "denoiser"),
    Part("vae", GIB // 6, "vae"),
)


def test_the_denoiser_has_one_card_and_the_encoders_the_other() -> None:
    """And the VAE goes where more is left, which is beside the encoders."""
    found = on_cards(FLUX, (24 * GIB, 24 * GIB))
    others = {"text_encoder": 1, "text_encoder_2": 1, "vae": 1}
    assert found == OnCards({"transformer": 0, **others}, home=0)


def test_the_pipeline_works_where_its_denoiser_is() -> None:
    """Which is the card with the most room, whatever its number."""
    found = on_cards(FLUX, (12 * GIB, 24 * GIB))
    assert found.home == found.where["transformer"] == 1
    assert found.where["text_encoder_2"] == 0


def test_two_denoisers_have_a_card_each() -> None:
    """Of a pipeline with two towers, the second does not push out the first."""
    parts = [Part(f"transformer{at}", 28 * GIB, "denoiser") for at in ("", "_2")]
    found = on_cards([Part("text_encoder", 10 * GIB, "encoder"), *parts], (32 * GIB, 32 * GIB))
    assert found.where["transformer"] != found.where["transformer_2"]


def test_what_somebody_decided_counts_first() -> None:
    """The rest is spread around it; a card that is not there is refused."""
    found = on_cards(FLUX, (24 * GIB, 24 * GIB), fixed={"transformer": 1, "vae": 1})
    assert found.home == found.where["vae"] == 1
    assert found.where["text_encoder_2"] == 0
    with pytest.raises(ValueError, match="from 0 to 1"):
        on_cards(FLUX, (1, 1), fixed={"vae": 2})
    with pytest.raises(ValueError, match="no card"):
        on_cards(FLUX, ())


@given(
    st.lists(
        st.builds(
            Part,
            st.text("abc", min_size=1, max_size=3),
            st.integers(0, 50),
            st.sampled_from(["denoiser", "encoder", "vae"]),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda part: part.name,
    ),
    st.lists(st.integers(0, 100), min_size=1, max_size=4),
)
def test_every_part_has_a_card(parts: list[Part], rooms: list[int]) -> None:
    """One card has them all; of several, home is that of a part."""
    found = on_cards(parts, rooms)
    assert list(found.where) == [part.name for part in parts]
    assert set(found.where.values()) <= set(range(len(rooms)))
    assert found.home in found.where.values()
