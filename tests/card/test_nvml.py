"""What NVML says of the devices, and how CUDA's numbers are brought together with its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.card.stub_nvml import StubDevice, StubNvml
from tightfit.card import nvml
from tightfit.card.nvml import Device, ask, devices, match, tidy_bus_id, visible
from tightfit.units import GIB, MIB

CALLS = sorted(name for name in vars(StubNvml) if name.startswith("nvml"))
SMALL = StubDevice("NVIDIA GeForce GTX 1660 SUPER", "GPU-5ma11000", "00000000:01:00.0", 6 * GIB)
LARGE = StubDevice("NVIDIA GeForce RTX 4090", "GPU-1a49e000", "00000000:41:00.0", 24 * GIB)
OTHER = StubDevice("NVIDIA GeForce RTX 3090", "GPU-1a49efff", "00000000:81:00.0", 24 * GIB)
BY_BUS = devices(StubNvml(SMALL, LARGE))
REVERSED = devices(StubNvml(LARGE, SMALL))


def names(found: Sequence[Device] | None) -> list[str | None] | None:
    """Enough to tell devices apart."""
    return None if found is None else [each.name for each in found]


def test_used_and_free_are_the_total() -> None:
    """Figures of the whole device, in bytes, and text where the library gives bytes."""
    (device,) = devices(StubNvml(StubDevice(total=12 * GIB, free=9 * GIB)))
    assert (device.total, device.used, device.free) == (12 * GIB, 3 * GIB, 9 * GIB)
    assert (device.uuid, device.bus_id) == ("GPU-aaaa1111", "00000000:01:00.0")
    assert (device.driver, device.cuda_driver) == ("580.82.07", (13, 1))
    assert (device.link_generation, device.link_width, device.link_width_max) == (4, 16, 16)


def test_a_process_that_computes_and_draws_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is the one that is known; its name is asked of the system."""
    monkeypatch.setattr(nvml, "_counts_for_the_machine", lambda: True)
    gone = 2**22 + 1
    stub = StubDevice(compute=[(os.getpid(), 300 * MIB), (gone, None)], graphics=[(gone, None)])
    stub.graphics.append((os.getpid(), None))
    (device,) = devices(StubNvml(stub))
    mine, other = device.processes
    assert (mine.pid, mine.used) == (os.getpid(), 300 * MIB)
    assert mine.name
    assert (other.pid, other.used, other.name) == (gone, None, None)


def test_in_a_container_numbers_of_processes_are_not_taken_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver counts as the machine does: our process of that number is another one."""
    monkeypatch.setattr(nvml, "_counts_for_the_machine", lambda: False)
    parent = os.getppid()
    (device,) = devices(StubNvml(StubDevice(compute=[(parent, MIB)])))
    assert device.processes[0].name is None
    (device,) = devices(StubNvml(StubDevice(compute=[(parent, MIB), (os.getpid(), MIB)])))
    assert device.processes[1].name  # we are in the list, so it is in our count


@pytest.mark.parametrize("call", CALLS)
def test_whatever_is_broken_nothing_is_raised(call: str) -> None:
    """One call that fails costs its own figure at most; the library is closed again."""
    library = StubNvml(StubDevice(compute=[(1, MIB)]), broken=(call,))
    answer = ask(library)
    needed = call in ("nvmlInit", "nvmlDeviceGetCount")
    assert (answer.problem is not None) == needed
    if not needed and call != "nvmlDeviceGetHandleByIndex":
        assert len(answer.devices) == 1
    assert library.open in ((0,) if call != "nvmlShutdown" else (1,))


def test_without_a_driver_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor without the package; the answer says which."""

    def absent() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    monkeypatch.setattr(nvml, "_library", absent)
    assert devices() == ()
    assert ask().problem == "nvidia-ml-py is not installed"


@pytest.mark.parametrize("found", [BY_BUS, REVERSED], ids=["by bus", "reversed"])
@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        ("1", [LARGE.name]),
        ("1,0", [LARGE.name, SMALL.name]),
        ("0", [SMALL.name]),
        (None, [SMALL.name, LARGE.name]),
        ("0,5,1", [SMALL.name]),
        ("1,1", []),
        ("-1", []),
        ("", []),
        ("none", []),
        (LARGE.uuid, [LARGE.name]),
        ("gpu-1a", [LARGE.name]),
        (f"{LARGE.uuid},{SMALL.uuid}", [LARGE.name, SMALL.name]),
        (f"{LARGE.uuid},{LARGE.uuid}", []),
        (f"{LARGE.uuid},0", [LARGE.name]),
        ("GPU-ffff", []),
    ],
)
def test_d02_the_visible_list_is_read_as_cuda_reads_it(
    found: Sequence[Device], listed: str | None, shown: list[str]
) -> None:
    """By bus id or UUID: in whatever order the management library has them."""
    assert names(visible(found, listed, order="PCI_BUS_ID")) == shown


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_d02_numbers_are_unknown_where_only_cuda_knows_them(order: str | None) -> None:
    """The fastest comes first, by a rule of its own; a UUID or a single device is sure."""
    for listed in ("1", "1,0", "0", None):
        assert visible(REVERSED, listed, order=order) is None
    assert names(visible(REVERSED, SMALL.uuid, order=order)) == [SMALL.name]
    assert names(visible(REVERSED, "", order=order)) == []
    assert names(visible(REVERSED[:1], "0", order=order)) == [LARGE.name]
    assert names(visible(REVERSED[:1], None, order=order)) == [LARGE.name]


def test_d02_a_slice_of_a_device_is_unknown() -> None:
    """NVML's figures are of the whole."""
    assert visible(BY_BUS, "MIG-1a49e000", order="PCI_BUS_ID") is None
    assert match(BY_BUS, uuid="MIG-1a49e000", bus_id=LARGE.bus) is None


def test_d02_a_beginning_that_two_devices_share_shows_neither() -> None:
    """As with CUDA: the list ends there."""
    found = devices(StubNvml(LARGE, OTHER))
    assert visible(found, "GPU-1a49e") == ()
    assert names(visible(found, "GPU-1a49ef")) == [OTHER.name]


@pytest.mark.parametrize("found", [BY_BUS, REVERSED], ids=["by bus", "reversed"])
def test_d02_what_torch_knows_of_a_device_finds_it(found: Sequence[Device]) -> None:
    """With or without ``GPU-``; by bus id only where there is no UUID."""
    for stub in (SMALL, LARGE):
        for key in (
            {"uuid": stub.uuid},
            {"uuid": stub.uuid.removeprefix("GPU-").upper()},
            {"bus_id": stub.bus.upper()},
            {"bus_id": stub.bus[4:]},
            {"uuid": stub.uuid, "bus_id": "00000000:99:00.0"},
        ):
            same = match(found, **key)
            assert same is not None
            assert same.name == stub.name
    assert match(found, uuid="GPU-ffff", bus_id=LARGE.bus) is None
    assert match(found) is None


@given(st.text(max_size=30), st.sampled_from([None, "PCI_BUS_ID", "FASTEST_FIRST"]))
def test_no_list_breaks_the_reading(listed: str, order: str | None) -> None:
    """Whatever stands in the variable; what is shown is there, and once."""
    shown = visible(BY_BUS, listed, order=order)
    assert shown is None or (set(shown) <= set(BY_BUS) and len(set(shown)) == len(shown))


@pytest.mark.parametrize("text", ["00000000:0A:00.0", "0000:0a:00.0", " 00000000:0a:00.0 "])
def test_a_bus_id_has_one_spelling(text: str) -> None:
    """Libraries write the domain with four digits or with eight."""
    assert tidy_bus_id(text) == "00000000:0a:00.0"


def test_asking_costs_no_torch() -> None:
    """The driver answers before PyTorch is loaded."""
    code = "import sys, tightfit.card.nvml as n; n.ask(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
