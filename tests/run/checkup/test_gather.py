"""A whole check-up, with a driver that is there, absent or broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.card.stub_nvml import StubDevice, StubNvml
from tightfit.card import bandwidth, nvml
from tightfit.errors import UsageError
from tightfit.run.checkup import check_up, gather
from tightfit.run.checkup.values import TorchCheck
from tightfit.units import GIB, MIB


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few MiB tell as much here as many, and this machine has no driver."""
    monkeypatch.setattr(bandwidth, "MOST_BYTES", 4 * MIB)
    monkeypatch.setattr(nvml, "_library", StubNvml)


def walk(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every leaf of JSON, with the keys that lead to it."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in walk(each, f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for each in value for leaf in walk(each, path)]
    return [(path, value)]


def test_a_machine_without_a_gpu_is_looked_at_all_the_same() -> None:
    """The host as a card, no devices, and JSON in which sizes are integers or null."""
    found = check_up("cpu")
    assert found.devices == ()
    assert [card.kind for card in found.cards] == ["cpu"]
    values = json.loads(json.dumps(found.as_dict()))
    assert values["version"] == 1
    sized = [(key, value) for key, value in walk(values) if "_bytes" in key]
    assert len(sized) > 15
    assert all(value is None or type(value) is int for _, value in sized)
    assert found.libraries["diffusers"]


def test_what_the_driver_shows_is_listed_though_pytorch_does_not_use_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With who is on it, and the command for a build that does."""
    stub = StubDevice(compute=[(2**22 + 1, 3 * GIB)])
    monkeypatch.setattr(nvml, "_library", lambda: StubNvml(stub))
    cpu = TorchCheck("2.13.0+cpu", None, None, sees_cuda=False, problem=None)
    monkeypatch.setattr(gather, "_look_at_torch", lambda: cpu)
    found = check_up("virtual:64MiB")
    (device,) = found.devices
    assert (device.name, device.card, device.table) == (stub.name, None, "rtx-3060")
    assert [each.held_bytes for each in device.holders] == [3 * GIB]
    assert found.driver.version == "580.82.07"
    assert "cu130" in found.advice[0].do


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_a_broken_driver_is_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Nothing is raised."""
    monkeypatch.setattr(nvml, "_library", lambda: StubNvml(StubDevice(), broken=(broken,)))
    found = check_up("cpu")
    assert found.driver.problem or found.devices[0].total_bytes is None


def test_a_pytorch_that_cannot_be_imported_is_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No card can be opened without it; the rest is there."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = check_up()
    assert found.torch.version is None
    assert found.torch.problem
    assert found.cards == ()
    assert found.host.ram_bytes > 0
    assert "cannot be imported" in found.advice[0].what


def test_a_card_that_is_none_is_refused() -> None:
    """As bad usage."""
    with pytest.raises(UsageError, match="is unknown"):
        check_up("virtual:nope")


def test_nothing_stays_behind(tmp_path: Path) -> None:
    """The cache folder is not even made."""
    check_up("cpu")
    assert not (tmp_path / "cache").exists()


def test_the_package_costs_no_torch() -> None:
    """A broken PyTorch must not keep the doctor from coming."""
    code = "import sys, tightfit.run.checkup; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
