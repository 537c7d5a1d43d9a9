"""The runner of diffusers' own tests, on tiny pipelines of ours: their repository is not needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bits import SHARES, judge
from clients import Client, clients_in, modules_of, spread
from device import on_a_virtual_card
from plugin import Instead, doors
from stand_ins import NotHere, stand_ins
from summary import PAGE, RESULTS, collected, page

import tightfit
from tests.pipelines import tiny
from tightfit.card import Card
from tightfit.errors import UsageError


@pytest.fixture
def card() -> Iterator[Card]:
    with on_a_virtual_card("1GiB") as opened:
        yield opened


@dataclass
class Fluxes:
    """Tiny FLUX pipelines, all alike."""

    makes: str = "FluxPipeline"
    steps: int = 1
    shifts: bool = False

    def pipeline(self) -> Any:
        """With `shifts`, each has other weights than the one before."""
        pipe = tiny.flux()
        if self.shifts:
            self.steps += 1
        return pipe

    def inputs(self, device: str) -> dict[str, Any]:
        return {
            "prompt": "a fox",
            "height": 32,
            "width": 32,
            "num_inference_steps": self.steps,
            "generator": torch.Generator(device).manual_seed(0),
            "output_type": "pt",
        }


def test_a_pipeline_that_makes_the_same_bits_in_less_memory_passes(card: Card) -> None:
    """The share is told; nothing of it stays on the card."""
    verdict = judge("flux", Fluxes(), card)
    assert (verdict.outcome, verdict.reason) == ("same bits", "")
    assert verdict.share in SHARES
    assert not card.read().allocated


@pytest.mark.slow
def test_a_pipeline_that_makes_other_bits_does_not_pass(card: Card) -> None:
    """Else the test above would show nothing."""
    verdict = judge("flux", Fluxes(shifts=True), card)
    assert verdict.outcome == "other bits"
    assert "apart" in verdict.reason


def test_what_does_not_run_unfitted_is_told_apart_from_what_fit_breaks(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first says nothing about us; each has its error in a line."""
    assert judge("flux", Fluxes(steps=0), card).outcome == "cannot run"

    def broken(*_: Any, **__: Any) -> None:
        raise IndexError("no such block")

    monkeypatch.setattr(tightfit, "fit", broken)
    verdict = judge("flux", Fluxes(), card)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith("IndexError: no such block")

    def refused(*_: Any, **__: Any) -> None:
        raise UsageError("That cannot be.")

    monkeypatch.setattr(tightfit, "fit", refused)
    assert judge("flux", Fluxes(), card).outcome == "refused"


@pytest.mark.filterwarnings("ignore")
def test_what_would_be_downloaded_is_made_here() -> None:
    """By its class and the name of its repository; folders are opened as ever."""
    from transformers import AutoConfig, AutoTokenizer, CLIPTokenizer, T5EncoderModel

    with stand_ins():
        letters = CLIPTokenizer.from_pretrained("some/tiny-random-clip", model_max_length=20)
        ids = letters("a fox", padding="max_length").input_ids
        assert (len(ids), ids[0]) == (20, letters.bos_token_id)
        assert max(ids) == letters.eos_token_id
        assert type(AutoTokenizer.from_pretrained("some/tiny-random-t5")).__name__ == "T5Tokenizer"
        encoder = T5EncoderModel.from_pretrained("some/tiny-random-t5")
        assert encoder.config.d_model == AutoConfig.from_pretrained("some/tiny-random-t5").d_model
        with pytest.raises(NotHere, match="no stand-in"):
            AutoConfig.from_pretrained("some/unheard-of")


def test_a_saved_stand_in_is_opened_as_it_was(tmp_path: Path) -> None:
    """Their tests save pipelines, and load them again."""
    from transformers import CLIPTokenizer

    with stand_ins():
        letters = CLIPTokenizer.from_pretrained("some/tiny-random-clip")
        letters.save_pretrained(tmp_path)
        again = CLIPTokenizer.from_pretrained(tmp_path)
    assert again("a fox").input_ids == letters("a fox").input_ids


def test_where_they_place_a_pipeline_it_is_fitted(card: Card) -> None:
    """By ``.to`` of the card and by offloads, once; ``.to`` of the host gives it back."""
    instead = Instead(card)
    patches = list(doors(instead))
    for patch in patches:
        patch.start()
    try:
        pipe = tiny.flux()
        assert pipe.to("vcard") is pipe
        assert tightfit.fitted(pipe).networks["transformer"].terms.mode == "none"
        pipe.enable_model_cpu_offload(device="vcard")
        assert instead.fits == 1
        pipe.to("cpu")
        with pytest.raises(UsageError, match="not fitted"):
            tightfit.fitted(pipe)
        instead.plain = True
        pipe.to(card.device)
        assert pipe.transformer.device.type == "vcard"
        instead.plain = False
        other = tiny.flux()
        other.enable_sequential_cpu_offload()
        instead.everything()
        with pytest.raises(UsageError, match="not fitted"):
            tightfit.fitted(other)
    finally:
        for patch in patches:
            patch.stop()


def test_every_folder_comes_before_the_second_file_of_any(tmp_path: Path) -> None:
    """What is cut short has seen all folders."""
    names = ("a/test_one.py", "a/test_two.py", "b/test_one.py", "b/test_onnx.py", "c/other.py")
    for name in names:
        path = tmp_path / "tests" / "pipelines" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [file for file, _ in modules_of(tmp_path)] == ["a/test_one.py", "b/test_one.py"] + [
        "a/test_two.py"
    ]
    assert modules_of(tmp_path, "b/*") == [("b/test_one.py", "tests.pipelines.b.test_one")]
    assert spread([]) == []


def test_classes_that_make_the_same_pipeline_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share what describes a pipeline; slow ones load true models."""
    module = ModuleType("described")

    class Config:
        pipeline_class = Fluxes

        def get_dummy_components(self) -> dict[str, Any]:
            return {}

        def get_dummy_inputs(self, device: str, seed: int = 0) -> dict[str, Any]:
            return {"device": device, "seed": seed}

    kinds = {name: type(name, (Config,), {}) for name in ("TestMemory", "TestSlow")}
    for name, kind in {"Config": Config, **kinds}.items():
        kind.__module__ = "described"
        setattr(module, name, kind)
    monkeypatch.setitem(sys.modules, "described", module)
    (found,) = clients_in("a/test_one.py", "described")
    assert found == Client("a/test_one.py", Config)
    assert found.inputs("vcard:0") == {"device": "vcard:0", "seed": 0}


def test_the_page_counts_what_the_rows_say() -> None:
    """The last row of a test counts, and the same reason is said once."""
    bits = [
        {"name": "a/test_a.py::A", "outcome": "same bits", "share": 0.5, "reason": ""},
        {"name": "a/test_b.py::B", "outcome": "cannot run", "share": None, "reason": "No net."},
        {"name": "b/test_c.py::C", "outcome": "cannot run", "share": None, "reason": "No net."},
    ]
    path = "tests/pipelines/a/test_a.py::TestA::"
    tests = [
        {"test": f"{path}test_x[1]", "outcome": "failed", "reason": "E: once"},
        {"test": f"{path}test_x[1]", "outcome": "passed", "reason": ""},
        {"test": f"{path}test_y", "outcome": "refused", "reason": "Not so."},
    ]
    about = {"tests": "1", "commit": "c", "diffusers": "2", "folders": "2"}
    text = page(collected(bits, tests, about))
    assert "| a | 1 | 1 |" in text
    assert "**cannot run**: No net. (`b::B`, `c::C`)" in text
    assert "| test_x | 1 |  |" in text
    assert "**refused**: Not so. (`a::TestA::test_y`)" in text


def test_the_page_is_what_the_kept_results_say() -> None:
    """It is written by the runner, and by nobody else."""
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))
