"""The benchmark of two cards: its jobs, its file, and its steps without a GPU."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
import torch
import two_cards
from two_cards import FULL, MINI, main

from tightfit.card.opener import open_cards


@pytest.mark.parametrize("scale", [FULL, MINI])
def test_no_job_begins_with_another(scale: two_cards.Scale) -> None:
    """So that a job's name finds its rows."""
    assert all(not two.startswith(one) for one, two in permutations(scale.jobs, 2))


@pytest.mark.slow
def test_two_cards_encode_what_one_does_and_other_rows_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit; rows of other jobs in the file are left as they are."""
    path = tmp_path / "cluster.json"
    other = {"job": "ray 500 clips", "who": "tightfit", "more": 1}
    path.write_text(json.dumps({"version": 1, "rows": [other]}))
    assert main(["--cpu", "--only", "[!s]*[Dd6])", "-o", str(path)]) == 0
    assert main(["--cpu", "--only", "encode*", "-o", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert rows[0] == other
    jobs = ["one file on two cards (D06)", "encode 1 card", "encode 2 cards"]
    assert [row["job"] for row in rows[1:]] == jobs
    assert [row["bit_equal"] for row in rows[1:]] == [True, None, True]
    assert rows[3]["limit_seconds"] == rows[2]["seconds"] / 2
    assert rows[1]["peak_reserved_bytes"] <= 1.1 * rows[1]["predicted_bytes"]
    assert "encode 2 cards | tightfit" in capsys.readouterr().out


def test_a_step_from_a_second_card_has_the_bits_of_the_resident_one() -> None:
    """The overflow lies there in one row, and in host memory in the other."""
    cards = open_cards(MINI.cards)
    whole, ours, host = two_cards.step(cards, MINI)
    assert [row.bit_equal for row in (whole, ours, host)] == [True, True, True]
    assert ours.budget_bytes == host.budget_bytes == 5 * 2**20
    for row in (ours, host):
        assert (row.peak_reserved_bytes or 0) <= 5 * 2**20
    assert "of it on virtual:2x1GiB" in ours.note
    assert "from the host" in host.note
    assert all(card.read().allocated == 0 for card in cards[1:])


def test_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """No such job, or no two devices."""
    assert main(["--only", "nothing"]) == 1
    assert "no job is called nothing" in capsys.readouterr().err
    if torch.cuda.device_count() < 2:
        assert main([]) == 1
        assert "two CUDA devices are needed" in capsys.readouterr().err
