"""Advice: each rule from the figures that call for it, and silence where all is well."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.run.checkup.common import CARD, DEVICE, GOOD, HOST, LINK, TORCH, holder
from tightfit.run.checkup import Advice, Checkup
from tightfit.run.checkup.remedies import remedies
from tightfit.units import GIB, MIB


def advised(found: Checkup, **hidden: bool) -> Advice:
    """The one piece of advice that there is."""
    (advice,) = remedies(found, **hidden)
    assert advice.do
    assert advice.what.endswith(".")
    return advice


def with_card(**changes: Any) -> Checkup:
    """The good machine with another card."""
    return replace(GOOD, cards=(replace(CARD, **changes),))


def with_device(card: Mapping[str, Any] | None = None, **changes: Any) -> Checkup:
    """The good machine with another device behind the card."""
    return replace(with_card(**(card or {})), devices=(replace(DEVICE, **changes),))


def test_a_good_machine_needs_no_advice() -> None:
    """Nothing is said for the sake of saying something."""
    assert remedies(GOOD) == ()


def test_a_build_without_cuda_beside_a_device_is_replaced_by_one_that_the_driver_runs() -> None:
    """The exact command, with the index of that build."""
    cpu = replace(TORCH, version="2.13.0+cpu", cuda=None, sees_cuda=False)
    for speaks, build in (("13.1", "/cu130"), ("12.4", "/cu126"), (None, "/cu130")):
        driver = replace(GOOD.driver, cuda=speaks)
        advice = advised(replace(GOOD, torch=cpu, driver=driver, cards=()))
        assert "NVIDIA GeForce RTX 3060" in advice.what
        assert advice.do.startswith("pip install --force-reinstall torch --index-url https://")
        assert advice.do.endswith(build)
    old = replace(GOOD.driver, cuda="11.4")
    assert "525" in advised(replace(GOOD, torch=cpu, driver=old, cards=())).do


def test_without_a_device_no_build_is_wrong() -> None:
    """A machine with no GPU needs no CUDA build; a CUDA build without a driver is said."""
    nothing = replace(GOOD, devices=(), cards=(), driver=replace(GOOD.driver, version=None))
    cpu = replace(TORCH, cuda=None, sees_cuda=False)
    assert remedies(replace(nothing, torch=cpu)) == ()
    blind = replace(nothing, torch=replace(TORCH, sees_cuda=False))
    assert "no NVIDIA driver answers" in advised(blind).what


def test_what_hides_a_device_is_named() -> None:
    """The variable, an old driver, or whatever PyTorch said."""
    blind = replace(GOOD, torch=replace(TORCH, sees_cuda=False), cards=())
    hidden = replace(blind, visible_devices="-1")
    assert advised(hidden, all_hidden=True).do == "unset CUDA_VISIBLE_DEVICES"
    old = replace(blind, driver=replace(GOOD.driver, cuda="12.4"))
    assert re.search(r"newer driver, or: pip install .*/cu126", advised(old).do)
    said = replace(blind, torch=replace(blind.torch, problem="error 802: not initialized"))
    assert "error 802" in advised(said).what


def test_a_broken_pytorch_is_put_back() -> None:
    """Nothing else can be judged without it."""
    broken = replace(TORCH, version=None, cuda=None, sees_cuda=False, problem="no libcudart")
    advice = advised(replace(GOOD, torch=broken, cards=()))
    assert "no libcudart" in advice.what


def test_the_default_allocator_is_told_of_the_better_one() -> None:
    """By its variable; a choice of the user's own is left alone."""
    native = {"allocator": "native", "allocator_from": "PyTorch's default"}
    advice = advised(with_card(**native))
    assert advice.do == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    chosen = {"allocator": "native", "allocator_from": "PYTORCH_CUDA_ALLOC_CONF=backend:native"}
    assert remedies(with_card(**chosen)) == ()
    assert remedies(with_card(**native, simulated=True, kind="virtual")) == ()


def test_who_holds_memory_is_named_with_the_pid_to_close() -> None:
    """The largest first, at most three; this process is not among them."""
    holders = tuple(holder(pid, pid * 300 * MIB) for pid in (1, 3, 4, 2))
    ours = holder(99, 9 * GIB, ours=True)
    small = holder(5, MIB)
    found = with_device({"held_by_others_bytes": 3 * GIB}, holders=(*holders, ours, small))
    advice = remedies(found)
    assert [each.do for each in advice] == [f"close it (pid {pid})" for pid in (4, 3, 2)]
    assert advice[0].what == "python3 (pid 4) holds 1.2 GiB of cuda:0."


def test_holders_that_cannot_be_told_are_said_to_be_hidden() -> None:
    """In a container nobody can be told from this process; elsewhere sizes may be hidden."""
    held = {"held_by_others_bytes": 3 * GIB}
    for holders in ((), (holder(7, 3 * GIB, ours=None),)):
        advice = advised(with_device(held, holders=holders))
        assert "3.0 GiB" in advice.what
        assert "hidden" in advice.what
        assert "nvidia-smi" in advice.do
    assert advised(with_device(held, holders=(holder(7, None),))).do == "close pid 7"


def test_a_little_that_others_hold_is_no_matter() -> None:
    """A desktop needs some."""
    assert remedies(with_card(held_by_others_bytes=100 * MIB)) == ()
    assert remedies(with_card(held_by_others_bytes=None)) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"link_lanes": 4}, "x4, and could be by x16"),
        ({"link_lanes": 4, "link_lanes_max": 4}, "x4 of PCIe 4, about 6.3 GB/s"),
        ({"link_generation_max": 3, "link_lanes": 8, "link_lanes_max": 8}, "x8 of PCIe 3"),
    ],
)
def test_a_card_in_a_narrow_slot_is_told(changes: Mapping[str, Any], says: str) -> None:
    """By what the slot could, or by what the card could."""
    advice = advised(with_device(**changes))
    assert says in advice.what
    assert "slot" in advice.do


def test_an_idle_link_of_a_lower_generation_is_no_matter() -> None:
    """It wakes up for a copy."""
    assert remedies(with_device(link_generation=1)) == ()


def test_copies_far_below_the_usual_are_told() -> None:
    """Measured against the slower of table and slot; unknown ones are not judged."""
    slow = replace(LINK, pinned_bytes_per_s=6_000_000_000)
    advice = advised(with_card(link=slow))
    assert "6.0 GB/s" in advice.what
    assert "25.2 GB/s" in advice.what
    unknown = replace(LINK, pinned_bytes_per_s=None)
    assert remedies(with_card(link=unknown)) == ()
    assert remedies(with_card(link=replace(slow, table_bytes_per_s=None), device=None)) == ()


def test_a_limit_below_the_ram_is_told() -> None:
    """With what sets another; a limit above the RAM is none."""
    limited = replace(GOOD, host=replace(HOST, group_limit_bytes=16 * GIB))
    advice = advised(limited)
    assert "16.0 GiB of the machine's 64.0 GiB" in advice.what
    assert "--memory" in advice.do
    assert remedies(replace(GOOD, host=replace(HOST, group_limit_bytes=65 * GIB))) == ()


def test_a_lock_limit_is_told_where_it_matters() -> None:
    """Where pinning failed, or under ROCm: CUDA does not count against it."""
    failed = replace(LINK, pinned_bytes_per_s=None, about="memory cannot be pinned: refused")
    assert "ulimit -l unlimited" in advised(with_card(link=failed)).do
    rocm = replace(GOOD, torch=replace(TORCH, cuda=None, hip="6.4"))
    assert "ulimit -l unlimited" in advised(rocm).do
    free = replace(with_card(link=failed), host=replace(HOST, lock_limit_bytes=None))
    assert "50.0 GiB is available" in advised(free).do


def test_a_limit_on_this_process_is_told() -> None:
    """With the setting that it comes from."""
    assert "6.0 GiB of cuda:0" in advised(with_card(limit_bytes=6 * GIB)).what


def test_a_card_that_cannot_be_opened_is_told() -> None:
    """With what was said."""
    assert "out of memory" in remedies(with_card(problem="CUDA error: out of memory"))[0].what


def test_without_the_management_library_nobody_can_be_named() -> None:
    """The package that brings it."""
    without = replace(GOOD, libraries={"nvidia-ml-py": None})
    assert advised(without).do == "pip install nvidia-ml-py"
