"""Q05, the run side: weights of one byte take what is planned, to the allocator's grain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.place.converting.nets import meant, store
from tightfit.run.fitting.need import Need
from tightfit.run.fitting.placing import taken_by
from tightfit.units import MIB

ROWS, COLUMNS = 1024, 2048


def layers(kind: str) -> nn.Sequential:
    """Four matrices of 2 MiB, a byte for each value."""
    torch.manual_seed(7)
    net = nn.Sequential()
    for rows, columns in ((ROWS, COLUMNS), (COLUMNS, ROWS)) * 2:
        layer = nn.Linear(columns, rows, bias=False)
        store(layer, "int8" if kind == "int8" else "rows")
        net.append(layer)
    return net.eval()


@pytest.mark.parametrize("allocator", ["exact", "native", "async"])
@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_q05_the_plan_and_the_card_agree_to_the_grain(kind: str, allocator: str, mode: str) -> None:
    """Not four bytes a value, as an element of what is computed with has; and nothing crashes."""
    net, x = layers(kind), torch.randn(1, COLUMNS).to(torch.bfloat16)
    free = virtual(1 << 30)
    wanted = meant(net, torch.bfloat16).to(free.device)(x.to(free.device)).cpu()
    card = virtual(f"200MiB,allocator={allocator}")
    tightfit.fit(net, card=card, mode=mode, example=(x,))
    found = tightfit.fitted(net)
    (stage,) = found.plan.stages
    assert stage.residency is not None
    assert stage.residency.conversion == 2 * ROWS * COLUMNS
    assert sum(unit.bytes for unit in stage.demand.units) < ROWS * COLUMNS * 4 + MIB // 8
    card.trim()
    reading = card.read()
    grain = MIB // 8 if allocator == "exact" else card.grain
    planned = stage.residency.bytes + stage.demand.scratch.known
    assert reading.allocated is not None
    assert found.session.bytes <= reading.allocated <= planned + grain
    assert reading.reserved <= taken_by(found.plan, Need()) + grain
    for _ in range(2):
        assert torch.equal(net(x).cpu(), wanted)
    assert stage.peak_reserved is not None
    assert (card.read().peak_reserved or 0) <= stage.peak_reserved + max(grain, 512)
    tightfit.unfit(net)
    card.trim()
    assert_back(card)
