"""What `generate` refuses before anything is on a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.pipelines.making import ROOMY, make, mask, picture, pipeline
from tightfit.api.generation import workplace
from tightfit.card import open_card
from tightfit.errors import UsageError

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no multiple": ("flux", {"width": 65}, r"`65` is no multiple of 4.*use 64 or 68"),
    "frames of pictures": ("flux", {"frames": 5}, "makes pictures: leave out --frames 5"),
    "frames between": ("wan", {"frames": 6}, "use 5 or 9"),
    "a clip as a picture": ("wan", {"out": "a.png"}, "give an .mp4 or a folder"),
    "a picture as a clip": ("flux", {"out": "a.mp4"}, "must end in .png"),
    "no folder": ("flux", {"out": "nowhere/a.png"}, "does not exist"),
    "strength alone": ("flux", {"strength": 0.5}, "--strength is of --image"),
    "mask alone": ("flux", {"mask": "in.png"}, "give both"),
    "strength of zero": ("flux", {"image": "in.png", "strength": 0.0}, "out of range"),
    "strength of nothing": (
        "flux",
        {"image": "in.png", "strength": 0.1},
        "of 2 steps leaves none: use 0.5 or more",
    ),
    "another mask": ("flux", {"image": "in.png", "mask": "small.png"}, "--mask is 32x32"),
    "no variant": ("wan", {"image": "in.png"}, "takes no --image"),
    "negative unheard": ("flux", {"negative": "dogs"}, "guidance above 1"),
    "steps": ("flux", {"steps": 0}, "--steps `0` is out of range"),
    "seed": ("flux", {"seed": -1}, "--seed `-1`"),
    "num": ("flux", {"num": 0}, "--num `0`"),
    "fps": ("wan", {"fps": "fast"}, "not a rate"),
    "fps of pictures": ("flux", {"fps": "24"}, "leave out --fps"),
    "scheduler": ("sdxl", {"scheduler": "nonsense"}, "Scheduler `nonsense` is unknown"),
    "scheduler of flows": ("sdxl", {"scheduler": "flow-euler"}, "follows a flow"),
    "weights": ("sdxl", {"weights": "fp8"}, "this pipeline is loaded"),
    "dtype": ("sdxl", {"dtype": "float16"}, "cast it first"),
    "no dtype": ("sdxl", {"dtype": "float8"}, "is unknown"),
    "lora of nothing": ("flux", {"loras": [("none.safetensors", 1)]}, "there is no such file"),
    "resume of nothing": ("flux", {"resume": True}, "say which, with -o"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_what_can(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything moves to a card; nothing is written."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "in.png")
    mask(tmp_path / "small.png", 32, 32)
    before = {path.name for path in tmp_path.iterdir()}
    kind, given, sentence = REFUSED[case]
    card = open_card(ROOMY)
    if "image" in given:
        given = {"width": None, "height": None, "frames": None, **given}
    with pytest.raises(UsageError, match=sentence):
        make(kind, card=card, **given)
    assert card.read().peak_allocated == 0
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_thing_that_is_no_pipeline_is_refused() -> None:
    """By what it is."""
    with pytest.raises(UsageError, match="not a Linear"):
        tightfit.generate(torch.nn.Linear(1, 1), prompt="a")


@pytest.mark.parametrize("loaded", [False, True])
def test_one_step_that_has_no_time_is_refused_before_anything_is_loaded(
    loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the scheduler of a SPEC, or of a pipeline that somebody has: latents would be NaN."""
    spec: Any = "random:qwen-image-mini"
    if loaded:
        spec = pipeline("flux")
        spec.scheduler.register_to_config(shift_terminal=0.02)
    monkeypatch.setattr(workplace, "load_pipeline", _not_loaded)
    with pytest.raises(UsageError, match="--steps 1 is too few"):
        tightfit.generate(spec, prompt="a cat", steps=1, card=ROOMY)


def _not_loaded(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("it was loaded")
