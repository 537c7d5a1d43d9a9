"""`tightfit.memory_log`: the log of what memory ended, where somebody asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tightfit
from tests.streaming import Net
from tightfit.api.memory_log import memory_log
from tightfit.card import open_card
from tightfit.errors import InputError, MemoryShortage
from tightfit.report.page import page
from tightfit.report.summary import summary
from tightfit.report.trace_file import Trace, read_trace
from tightfit.testing import toy_vae

SECRET = "a prompt of somebody"


def logged(path: Path) -> Trace:
    """What was written, which the page and the summary can show."""
    trace = read_trace(path)
    assert trace.is_oom
    assert SECRET not in path.read_text(encoding="utf-8")
    assert page(trace)
    assert summary(trace)
    return trace


def test_a_decode_that_memory_ends_leaves_its_log(tmp_path: Path) -> None:
    """With the report, every try, and the events; the error says where it is."""
    path = tmp_path / "job.oom.json"
    with pytest.raises(MemoryShortage) as caught, memory_log(path):
        tightfit.decode(
            torch.randn(1, 4, 64, 64),
            vae=toy_vae("V2N"),
            card="virtual:1MiB",
            tile="off",
            estimate=False,
        )
    assert any(str(path) in note for note in caught.value.__notes__)
    trace = logged(path)
    assert trace.header["error"] == str(caught.value)
    assert trace.header["card"]["name"] == "virtual:1MiB"
    assert trace.header["report"]["command"] == "decode"
    tried = [each["rung"] for each in trace.header["attempts"] if each["outcome"] == "oom"]
    assert "whole" in tried
    assert [event["rung"] for event in trace.of("oom")] == tried


def test_a_call_of_what_is_fitted_leaves_its_log(tmp_path: Path) -> None:
    """No report is made of one: tries and the ledger are those of the ladder and the plan."""
    path = tmp_path / "call.oom.json"
    module = Net(64, (0, 1)).eval()
    tightfit.fit(module, card="virtual:1MiB", example=(torch.zeros(4, 64),))
    with pytest.raises(MemoryShortage), memory_log(path), torch.no_grad():
        module(torch.zeros(100_000, 64))
    trace = logged(path)
    assert trace.header["card"]["total_bytes"] == 2**20
    assert trace.header["ledger"]
    assert trace.events
    tightfit.unfit(module)


def test_what_memory_did_not_end_leaves_none(tmp_path: Path) -> None:
    """Neither what is done nor what failed for another reason."""
    path = tmp_path / "job.json"
    with memory_log(path):
        pass
    with pytest.raises(ZeroDivisionError), memory_log(path):
        raise ZeroDivisionError(SECRET)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_card_in_code_of_somebody_else_is_told_too(tmp_path: Path) -> None:
    """With what is known: what it said, and the versions."""
    path, card = tmp_path / "job.json", open_card("virtual:1MiB")
    with pytest.raises(torch.OutOfMemoryError), memory_log(path):
        nn.Linear(1024, 1024).to(card.device)
    trace = logged(path)
    assert "out of memory" in trace.header["error"]
    assert trace.header["versions"]["torch"] == str(torch.__version__)
    assert trace.events == ()


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """Before hours of work, and not after them."""
    for path in (tmp_path / "no" / "such.json", tmp_path / "job.txt", tmp_path):
        with pytest.raises(InputError), memory_log(path):
            pytest.fail("it went on")


def test_an_older_log_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """And one that cannot be written hides no error."""
    path = tmp_path / "job.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(torch.OutOfMemoryError), memory_log(path):
        raise torch.OutOfMemoryError("no room")
    assert logged(path).header["error"] == "no room"
    folder = tmp_path / "gone"
    folder.mkdir()
    log = memory_log(folder / "job.json")
    log.__enter__()
    folder.rmdir()
    error = torch.OutOfMemoryError("no room")
    assert not log.__exit__(type(error), error, None)  # so it goes on
    assert not hasattr(error, "__notes__")
