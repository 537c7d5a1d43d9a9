"""The public names are written once and hold."""

from __future__ import annotations

import pytest

import tightfit

PUBLIC = [
    "Frames",
    "Generated",
    "Plan",
    "Result",
    "Session",
    "Watching",
    "decode",
    "decode_all",
    "encode",
    "encode_all",
    "fit",
    "fitted",
    "generate",
    "leakcheck",
    "load_pipeline",
    "load_weights",
    "make_plan",
    "memory_log",
    "pack",
    "pickles_allowed",
    "placed",
    "tiled",
    "unfit",
    "unpack",
    "verify",
]


def test_the_public_list_is_what_it_is() -> None:
    """A name comes or goes on purpose, and the list stays sorted."""
    assert tightfit.__all__ == PUBLIC == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves_and_says_what_it_is(name: str) -> None:
    """Every public name has a docstring of its own."""
    assert getattr(tightfit, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazy names do not swallow typing errors."""
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = tightfit.no_such_thing
