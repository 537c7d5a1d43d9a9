"""Real networks, narrow: streamed as resident, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases.common import assert_back, virtual
from tests.streaming import Case
from tightfit.adapters import call_of, find_parts, load_part, stages_of
from tightfit.place import placed
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.size import Size
from tightfit.plan.streaming.pieces import Level

FLOAT = torch.float32


def first(result: Any) -> torch.Tensor:
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level", "frames"),
    [
        ("flux.1-dev-mini/transformer", "block", 1),
        ("sdxl-mini/unet", "leaf", 1),
        ("wan2.1-t2v-1.3b-mini/transformer", "leaf", 1),
        ("qwen-image-mini/transformer", "block", 1),
        ("flux.1-dev-mini/text_encoder", "leaf", 1),
        ("flux.1-dev-mini/text_encoder_2", "block", 1),
        ("wan2.1-t2v-1.3b-mini/vae", "leaf", 1),
    ],
)
def test_a_network_streams_as_it_runs_resident(name: str, level: Level, frames: int) -> None:
    """Two calls, every wait checked; nothing allocated by streaming, nothing left on the card."""
    (part,) = find_parts(f"random:{name}")
    module, stage = load_part(part, dtype=FLOAT), stages_of(part)[0]
    card, size = virtual("1GiB"), Size(64, 64, frames)

    def call() -> torch.Tensor:
        return first(call_of(part, module, stage, size, dtype=FLOAT)())

    case = Case.of(module, call_of(part, module, stage, size, dtype=FLOAT))
    with placed(module, card.device):
        start = card.allocations
        wanted = call().cpu()
        alone = card.allocations - start
    residency = case.everything(level, 2, lambda at: at % 4 == 3)
    card.faults.lanes = "strict"
    with streamed(module, card, residency, case.blocks, order=case.order) as session:
        assert torch.equal(call().cpu(), wanted)
        start, copied = card.allocations, session.copies
        assert torch.equal(call().cpu(), wanted)
        assert card.allocations - start <= alone
        assert session.copies.count > copied.count
        assert session.copies.grown == 0
    assert card.hazards == ()
    assert_back(card)


def test_a_library_saves_the_true_weights_of_a_streamed_network(tmp_path: Path) -> None:
    """`save_pretrained` in the middle of a session, and what is loaded from there."""
    (part,) = find_parts("random:wan2.1-t2v-1.3b-mini/transformer")
    module = load_part(part, dtype=FLOAT)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    case = Case.of(module, call_of(part, module, "denoise", Size(64, 64, 1), dtype=FLOAT))
    card = virtual("1GiB")
    residency = case.everything("block", 2, lambda at: at % 4 == 3)
    save: Any = module.save_pretrained
    with streamed(module, card, residency, case.blocks, order=case.order):
        save(tmp_path / "saved")
    (saved,) = find_parts(str(tmp_path / "saved"))
    after = load_part(saved, dtype=FLOAT).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
