"""Whether a cluster can be joined."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tightfit.cluster import reaching
from tightfit.cluster.reaching import reach
from tightfit.cluster.versions import versions_here
from tightfit.errors import UsageError


@pytest.fixture
def mute() -> Iterator[str]:
    """Something that listens, and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_at_which_nothing_answers_is_refused(tmp_path: Path) -> None:
    """At once, and so is what is no address."""
    for address, said in (
        ("127.0.0.1:1", "nothing answers there"),
        ("nonsense", "write HOST:PORT"),
        ("host:99999", "write HOST:PORT"),
        ("ray://host:1", "start it there with HOST:PORT"),
    ):
        with pytest.raises(UsageError, match=said):
            reach(address, tmp_path)


def test_what_does_not_answer_as_a_cluster_is_given_up(tmp_path: Path, mute: str) -> None:
    """After the time that it has."""
    with pytest.raises(UsageError, match="no Ray answered within"):
        reach(mute, tmp_path, patience=0.1)


@pytest.mark.parametrize(
    ("versions", "sees", "said"),
    [
        ({}, True, None),
        ({}, False, "node-7 does not see"),
        ({"tightfit": "0.0.1"}, True, "node-7 has tightfit 0.0.1, and here it is"),
        ({"tightfit": None}, True, "node-7 has tightfit not at all"),
        ({"torch": "1.0"}, True, "node-7 has PyTorch 1.0"),
    ],
)
def test_a_machine_that_would_do_other_work_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mute: str,
    versions: dict[str, str | None],
    sees: bool,
    said: str | None,
) -> None:
    """Other versions give other bits; a folder that is not shared takes no outputs."""
    there = {key: value for key, value in {**versions_here(), **versions}.items() if value}
    answer: dict[str, Any] = {"machines": [{"name": "node-7", "versions": there, "sees": sees}]}
    monkeypatch.setattr(reaching, "_ask", lambda *_: answer)
    if said is None:
        reach(mute, tmp_path)
        return
    with pytest.raises(UsageError, match=said):
        reach(mute, tmp_path)


def test_what_ray_says_of_versions_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mute: str
) -> None:
    """In one sentence."""
    error = "Version mismatch: The cluster was started with:\n    Ray: 2.50\n    Python: 3.12"
    monkeypatch.setattr(reaching, "_ask", lambda *_: {"error": error})
    with pytest.raises(UsageError, match=r"other versions run there: .* Ray: 2\.50 Python: 3\.12"):
        reach(mute, tmp_path)
