"""Others who move weights, and modules that are streamed already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from accelerate.hooks import CpuOffload, SequentialHook, add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry, ModelHook, apply_group_offloading
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.streaming import Case, Net
from tightfit.errors import UsageError
from tightfit.place.streaming.strangers import refuse_strangers
from tightfit.place.streaming.streamed import streamed


def net() -> Net:
    torch.manual_seed(0)
    return Net(8, (0, 3))


def test_hooks_of_accelerate_are_refused_by_path_with_what_to_call() -> None:
    """Offloading of any kind; after what the message says, the module is taken."""
    module = net()
    cpu_offload(module.blocks[1], execution_device="cpu")
    with pytest.raises(UsageError, match=r"`blocks.1\S*` of `Net`.* AlignDevicesHook.*remove_ho"):
        refuse_strangers(module)
    remove_hook_from_module(module, recurse=True)
    refuse_strangers(module)
    add_hook_to_module(module, CpuOffload("cpu"))
    with pytest.raises(UsageError, match="`Net` is moved by accelerate's CpuOffload"):
        refuse_strangers(module)
    add_hook_to_module(module, CpuOffload("cpu"), append=True)
    assert isinstance(vars(module)["_hf_hook"], SequentialHook)
    with pytest.raises(UsageError, match="CpuOffload"):
        refuse_strangers(module)


def test_a_module_that_is_spread_is_refused() -> None:
    """One device in the map moves nothing."""
    module: Any = net()
    dispatch_model(module, {"": "cpu"})
    refuse_strangers(module)
    module.hf_device_map = {"first": 0, "blocks": "cpu"}
    with pytest.raises(UsageError, match=r"hf_device_map.*reset_device_map"):
        refuse_strangers(module)


def test_group_offloading_of_diffusers_is_refused_and_other_hooks_are_not() -> None:
    """With the path of the first module that has such a hook; caches may stay."""
    module = net()
    HookRegistry.check_if_exists_or_initialize(module.first).register_hook(ModelHook(), "a_cache")
    refuse_strangers(module)
    apply_group_offloading(
        module.blocks[0], torch.device("cpu"), torch.device("cpu"), offload_type="leaf_level"
    )
    with pytest.raises(UsageError, match=r"`blocks.0\S*` of `Net`.* group_offloading.*remove_h"):
        refuse_strangers(module)


def test_what_merely_looks_like_a_hook_is_let_alone() -> None:
    """Attributes of other kinds under those names."""
    module: Any = net()
    module._hf_hook = SimpleNamespace(hooks=())
    module._diffusers_hook = SimpleNamespace(hooks=None)
    module.hf_device_map = None
    refuse_strangers(module)


def test_parts_wholes_and_shared_weights_of_what_is_streamed_are_refused_by_name() -> None:
    """In either order; and it is taken once the other session is over."""
    module, card = net(), virtual("1MiB")
    block: Any = module.blocks[0]
    other = nn.Sequential(nn.Linear(8, 8))
    other[0].weight = module.first.weight
    cases = {m: Case.of(m, lambda m=m: m(torch.zeros(1, 8))) for m in (module, block, other)}

    def session(which: nn.Module) -> Any:
        case = cases[which]
        return streamed(
            which, card, case.everything("block", 1, lambda _: False), case.blocks, order=case.order
        )

    with session(module):
        held = card.read().allocated
        with (
            pytest.raises(UsageError, match=r"`Table` is .* as `blocks.0` of `Net`"),
            session(block),
        ):
            pytest.fail("it was taken")
        with pytest.raises(UsageError, match=r"`0.weight` .* as `first.weight`"), session(other):
            pytest.fail("it was taken")
        assert card.read().allocated == held
    with (
        session(block),
        pytest.raises(UsageError, match=r"`blocks.0` of `Net` .* by itself"),
        session(module),
    ):
        pytest.fail("it was taken")
    with session(block), session(other):
        pass
    assert_back(card)
