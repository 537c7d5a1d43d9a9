"""The fine level: every move of an allocator, and nothing where it is not wanted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import tightfit
from tests.cases.common import virtual
from tightfit.allocators import KINDS
from tightfit.card import Card, history, open_card
from tightfit.card.history import Entry, entries_of
from tightfit.cli import run
from tightfit.place import placed
from tightfit.report.trace_file import read_trace
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch import moves as moves_of
from tightfit.watch.moves import moves_told

TORCH, OURS = (str(Path(each.__file__).parent) for each in (torch, tightfit))


def moves(recorder: Recorder, *kinds: str) -> list[int]:
    return [event["bytes"] for event in recorder.events() if event["event"] in kinds]


@pytest.mark.parametrize("kind", KINDS)
def test_the_moves_of_a_virtual_card_sum_up_to_what_it_holds(kind: str) -> None:
    """Allocated and reserved, at any time; what was there before is told first."""
    card = virtual(f"1GiB,allocator={kind}")
    before = torch.zeros(3000, device=card.device)
    recorder = Recorder(fine=True)
    with moves_told(card, recorder):
        kept = [torch.zeros(size * 1000, device=card.device) for size in range(1, 9)]
        del kept[::2]
    now = card.read()
    assert recorder.live_bytes == now.allocated
    assert sum(moves(recorder, "reserve")) - sum(moves(recorder, "release")) == now.reserved
    del before
    with moves_told(card, recorder):  # what went while nobody listened
        kept.clear()
    assert recorder.live_bytes == card.read().allocated == 0


def test_a_move_names_the_code_that_asked() -> None:
    """By module, line and function; no folders."""
    card, recorder = virtual("64MiB"), Recorder(fine=True)
    with moves_told(card, recorder):
        torch.zeros(1000, device=card.device)
    (by,) = [event["by"] for event in recorder.events() if event["event"] == "allocate"]
    assert by.startswith("tests.watch.test_moves:")
    assert by.endswith("test_a_move_names_the_code_that_asked")
    assert "/" not in by


def test_what_we_ask_for_by_ourselves_is_said_to_be_ours() -> None:
    """Beside the user's line; weights that come to the card are an example."""
    card, recorder = virtual("64MiB"), Recorder(fine=True)
    module = torch.nn.Linear(8, 8)
    with moves_told(card, recorder), placed(module, card.device):
        pass
    asked = {event["by"] for event in recorder.events() if event["event"] == "allocate"}
    assert asked
    assert all(by.startswith("tests.watch.test_moves:") for by in asked)
    assert all(by.endswith(", in tightfit.place.whole") for by in asked)


def test_of_a_command_no_plumbing_is_named(tmp_path: Path) -> None:
    """Neither Typer's lines nor ours that read options, but the model's, and what we placed."""
    Image.new("RGB", (64, 64), (200, 90, 30)).save(tmp_path / "a.png")
    out, trace = tmp_path / "a.safetensors", tmp_path / "t.jsonl"
    what = ("encode", tmp_path / "a.png", "-o", out, "--vae", "mini:wan2.1-vae", "-q")
    command = (*what, "--card", "virtual:64MiB", "--trace", trace)
    assert run([str(each) for each in command]) == 0
    asked = {event["by"] or "" for event in read_trace(trace).of("allocate")}
    assert {by.partition(".")[0] for by in asked} == {"diffusers", "tightfit"}
    assert not any(by.startswith("tightfit.cli") for by in asked)
    assert any(by.startswith("tightfit.place.whole:") for by in asked)


def test_the_coarse_level_hears_nothing() -> None:
    """And no observer is left behind."""
    for fine in (False, True):
        card, recorder = virtual("64MiB"), Recorder(fine=fine)
        with moves_told(card, recorder):
            pass
        torch.zeros(1000, device=card.device)
        assert moves(recorder, "allocate", "free") == []


def test_one_inside_another_hears_nothing_twice() -> None:
    """A try within a call within a job."""
    card, recorder = virtual("64MiB"), Recorder(fine=True)
    with moves_told(card, recorder), moves_told(card, recorder):
        kept = torch.zeros(1024, device=card.device)
    assert moves(recorder, "allocate") == [kept.nbytes]


def test_moves_are_told_also_where_the_block_fails() -> None:
    """They are what somebody will look for."""
    card, recorder = virtual("64MiB"), Recorder(fine=True)

    def fails() -> None:
        with moves_told(card, recorder):
            torch.zeros(1024, device=card.device)
            torch.zeros(1 << 30, device=card.device)

    with pytest.raises(torch.OutOfMemoryError):
        fails()
    assert moves(recorder, "allocate") == moves(recorder, "free") == [4096]
    assert not recorder.hears_moves


def test_where_no_allocator_tells_tensors_are_counted_and_it_is_said() -> None:
    """Each storage once, whoever shares it; also those that are there no more."""
    card, recorder = open_card("cpu"), Recorder(fine=True)
    weight = torch.ones(64, 64)
    with moves_told(card, recorder), torch.no_grad():
        x = torch.zeros(16, 64)
        y = x.view(64, 16).t()
        x = x @ weight
        x.add_(1)
        del y
    gc.collect()
    assert sorted(moves(recorder, "allocate")) == [4096, 4096]
    assert moves(recorder, "free") == [4096]
    del x
    assert recorder.live_bytes == 0
    (text,) = [event["text"] for event in recorder.events() if event["event"] == "unseen"]
    assert "keeps no books" in text
    assert "cannot be seen" in text


def test_a_history_of_pytorch_is_read() -> None:
    """Its actions by our names; the first frame that is a user's, without its folder."""
    frames = [
        {"filename": f"{TORCH}/nn/conv.py", "line": 3, "name": "forward"},
        {"filename": "/home/me/tightfit/torch/model.py", "line": 7, "name": "decode"},
    ]
    trace: list[dict[str, Any]] = [
        {"action": "segment_alloc", "addr": 512, "size": 2048, "time_us": 2_000_000},
        {"action": "alloc", "addr": 512, "size": 1024, "time_us": 3_000_000, "frames": frames},
        {"action": "free_requested", "addr": 512, "size": 1024},
        {"action": "free_completed", "addr": 512, "size": 1024, "time_us": 9_000_000},
        {"action": "snapshot", "addr": 0, "size": 0},
        {"action": "segment_free", "addr": 512, "size": 2048},
    ]
    ours = [
        {"filename": f"{TORCH}/nn/conv.py", "line": 3, "name": "to"},
        {"filename": f"{OURS}/place/whole.py", "line": 5, "name": "placed"},
    ]
    user = {"filename": "/home/me/app.py", "line": 9, "name": "main"}
    plumbing = [
        {"filename": f"{OURS}/cli/encode.py", "line": 1, "name": "encode"},
        {"filename": "/site/typer/main.py", "line": 2, "name": "wrapper"},
    ]
    move = {"action": "alloc", "addr": 512, "size": 1024}
    asked = [
        entry.by
        for after in ([user], plumbing, [])
        for entry in entries_of([{**move, "frames": [*ours, *after]}])
    ]
    alone = "tightfit/place/whole.py:5 placed"
    assert asked == ["app.py:9 main, in tightfit/place/whole.py", alone, alone]
    assert entries_of(trace) == [
        Entry("reserve", 2048, 512, 2.0, None),
        Entry("allocate", 1024, 512, 3.0, "model.py:7 decode"),
        Entry("free", 1024, 512, None, None),
        Entry("release", 2048, 512, None, None),
    ]


def test_a_history_is_told_when_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the block, by the clock of the recorder, in order with all else."""
    recorder = Recorder(fine=True)
    card, calls = _card_with_a_history(monkeypatch, recorder)
    while recorder.now() < 0.001:
        pass
    with moves_told(card, recorder):
        recorder.event("tick")
    told = recorder.events()
    assert [event["event"] for event in told] == ["allocate", "tick", "free"]
    at = told[0].pop("t")
    assert at == pytest.approx(0.0001, abs=1e-5)
    assert told[0] == {"event": "allocate", "bytes": 7 * MIB, "address": 5, "by": None}
    assert recorder.live_bytes == card.read().allocated == 0  # evened out after the block
    assert calls[0]["max_entries"] > 0
    assert calls[-1]["enabled"] is None


@pytest.mark.parametrize("most", [2, 200_000])
def test_that_a_history_was_too_long_to_be_kept_is_said(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Its moves are far from what is held; of few, that has other reasons."""
    monkeypatch.setattr(moves_of, "_MOST", most)
    recorder = Recorder(fine=True)
    card, _ = _card_with_a_history(monkeypatch, recorder)
    with moves_told(card, recorder):
        pass
    said = [event["text"] for event in recorder.events() if event["event"] == "unseen"]
    assert len(said) == (most == 2)
    assert all("do not add up" in text for text in said)


def _card_with_a_history(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> tuple[Card, list[dict[str, Any]]]:
    """A card whose allocator tells of one tensor of 7 MiB that it does not hold, and how the
    history was asked for."""
    began = recorder._began
    calls: list[dict[str, Any]] = []

    class Memory:
        def _record_memory_history(self, **options: Any) -> None:
            calls.append(options)

        def _snapshot(self, _: object) -> dict[str, Any]:
            at = {"time_us": (began + 0.0001) * 1e6}
            return {"device_traces": [[{"action": "alloc", "addr": 5, "size": 7 * MIB, **at}]]}

    monkeypatch.setattr(history.torch.cuda, "memory", Memory())
    monkeypatch.setattr(history.torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    card = virtual("64MiB")
    monkeypatch.setattr(type(card), "kind", "cuda")
    monkeypatch.setattr(card, "allocator", "native")
    card.device = torch.device("cuda", 0)
    return card, calls
