"""What stayed, as the page lists it."""

from __future__ import annotations

from typing import Any

from tests.report.page.records import MIB, event
from tightfit.report.page.leaks import leaks


def _leak(size: int, *chain: str, **more: Any) -> dict[str, Any]:
    return event(1.0, "leak", bytes=size, hold="module attribute", chain=[*chain], **more)


def test_what_one_holder_has_in_many_places_is_one_line() -> None:
    """The bytes of all, how many they are, and the largest of them."""
    found = leaks(
        [
            _leak(MIB, "module app", "vae._feat[0]", "Tensor [1], 1.0 MiB"),
            _leak(3 * MIB, "module app", "vae._feat[11]", "Tensor [3], 3.0 MiB"),
            _leak(2 * MIB, "module app", "vae.last", "Tensor [2], 2.0 MiB"),
        ]
    )
    assert [(leak.bytes, leak.count) for leak in found] == [(4 * MIB, 2), (2 * MIB, 1)]
    assert found[0].chain == ("module app", "vae._feat[…]", "the largest: Tensor [3], 3.0 MiB")
    assert found[1].chain[-1] == "Tensor [2], 2.0 MiB"


def test_what_was_held_at_another_moment_is_another_line() -> None:
    """Likewise what another line of code made."""
    chain = ("vae._feat[0]", "Tensor")
    found = leaks(
        [
            _leak(3, *chain),
            _leak(2, *chain, moment="in the handler"),
            _leak(1, *chain, site="vae.py:3"),
        ]
    )
    assert [(leak.bytes, leak.moment, leak.site) for leak in found] == [
        (3, "", ""),
        (2, "in the handler", ""),
        (1, "", "vae.py:3"),
    ]


def test_pieces_whose_shapes_alone_differ_are_not_taken_together() -> None:
    """A size in the last link is no place in a holder."""
    found = leaks([_leak(2, "module app", "Tensor [2]"), _leak(1, "module app", "Tensor [1]")])
    assert [leak.count for leak in found] == [1, 1]
