"""Where copies lie: none in the way of another that is in use, and as close as that allows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tightfit.place.converting.uses import room_of, uses_of
from tightfit.weigh.conversions import Converted, Layer
from tightfit.weigh.tensors import Held, Kind

FP8 = torch.float8_e4m3fn


def layer(path: str, size: int) -> Layer:
    """One weight of `size` values."""
    weight = torch.zeros(size).to(FP8)
    owner = nn.Module()
    return Layer(
        path,
        (Converted(Held(f"{path}.weight", owner, "weight", (), Kind.PARAMETER, weight, path)),),
    )


def holds(above: str, below: str) -> bool:
    return f"{below}.".startswith(f"{above}.") or not above


paths = st.lists(
    st.lists(st.sampled_from("abc"), max_size=4).map(".".join), min_size=1, max_size=8, unique=True
)


@given(paths, st.data())
def test_what_is_in_use_together_lies_apart(names: list[str], data: st.DataObject) -> None:
    """Calls within calls, and layers that are used while another is called."""
    layers = [layer(name, data.draw(st.integers(1, 3000))) for name in names]
    foreign = {
        f"{name}.weight": [data.draw(st.sampled_from(names))]
        for name in names
        if data.draw(st.booleans())
    }
    uses = uses_of(layers, foreign)
    room = room_of(uses, torch.float32)
    for one in uses:
        first, last = room.starts[one.layer.name], room.ends[one.layer.name]
        assert last - first >= 4 * one.weights[0].tensor.numel()
        assert last <= room.bytes
        for two in uses:
            together = any(holds(a, b) or holds(b, a) for a in one.anchors for b in two.anchors)
            if one is not two and together:
                assert last <= room.starts[two.layer.name] or room.ends[two.layer.name] <= first


def test_layers_one_after_another_share_the_room_of_the_largest() -> None:
    """So the scratch of a model is one layer."""
    uses = uses_of([layer(f"blocks.{at}.up", 1000 + at) for at in range(50)], {})
    assert room_of(uses, torch.float32).bytes == 4352  # 4 * 1049, in steps of 256


def test_a_weight_in_the_dtype_of_the_call_takes_no_room() -> None:
    """There is nothing to convert."""
    weight = torch.zeros(100, dtype=torch.bfloat16)
    held = Held("a.bias", nn.Module(), "bias", (), Kind.PARAMETER, weight, "a")
    uses = uses_of([Layer("a", (Converted(held),))], {})
    assert uses[0].needs_copy(torch.bfloat16) == (False,)
    assert room_of(uses, torch.bfloat16).bytes == 0
    assert room_of(uses, torch.float32).bytes == 512
