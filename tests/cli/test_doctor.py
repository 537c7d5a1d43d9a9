"""`tightfit doctor` as users run it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.card.stub_nvml import StubNvml
from tests.run.checkup.common import CARD, DEVICE, GOOD, HOST, LINK, TORCH, holder
from tightfit.card import bandwidth, nvml
from tightfit.cli import run
from tightfit.run import checkup
from tightfit.run.checkup import Checkup
from tightfit.units import GIB, MIB


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few MiB tell as much here as many, and no driver answers."""
    monkeypatch.setattr(bandwidth, "MOST_BYTES", 4 * MIB)
    monkeypatch.setattr(nvml, "_library", StubNvml)
    monkeypatch.setenv("COLUMNS", "200")


def printed(
    found: Checkup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The page of a check-up, spaces evened out."""
    monkeypatch.setattr(checkup, "check_up", lambda card, tell: found)
    assert run(["doctor"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_without_a_gpu_it_says_so_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    """A readable screenful, with nothing on stderr."""
    assert run(["doctor", "--card", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for heading in ("System", "Card cpu", "Host", "Advice"):
        assert f"\n{heading}" in f"\n{out}"
    assert len(out.splitlines()) < 45
    assert "Traceback" not in out


def test_a_card_that_is_not_here_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    """Its link is the table's, and said to be."""
    assert run(["doctor", "--card", "virtual:rtx-3060,others=2GiB"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "simulated" in out
    assert "25.2 GB/s from pinned memory, by the table" in out
    assert "2.0 GiB held by others" in out


def test_json_stands_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, its version first."""
    assert run(["doctor", "--json", "--card", "virtual:rtx-3060"]) == 0
    out, err = capsys.readouterr()
    values = json.loads(out)
    assert next(iter(values)) == "version"
    assert err == ""
    (card,) = values["cards"]
    assert card["total_bytes"] == 12 * GIB
    assert card["link"]["pinned_bytes_per_s"] is None


def test_an_unknown_card_is_bad_usage_with_the_near_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No figures, one sentence."""
    assert run(["doctor", "--card", "virtual:rtx-4060-ti"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "rtx-4060-ti-8gb or rtx-4060-ti-16gb" in err


def test_l07_three_lines_explain_what_is_not_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Allocated, reserved by us, context and others, and what a trim gives back."""
    others = replace(CARD, held_by_others_bytes=3 * GIB)
    device = replace(DEVICE, holders=(holder(7, 3 * GIB), holder(8, 400 * MIB, ours=True)))
    found = replace(GOOD, cards=(others,), devices=(device,))
    out = printed(found, monkeypatch, capsys)
    assert "12.0 GiB in all: 1.0 GiB used, 11.0 GiB free" in out
    assert "allocated 8.0 MiB in tensors" in out
    assert "reserved 22.0 MiB taken by its allocator" in out
    assert "400.0 MiB for the context" in out
    assert "no trim gives back" in out
    assert "3.0 GiB held by others" in out
    assert "pid 7 (python3): 3.0 GiB" in out
    assert "pid 8 (python3, this process): 400.0 MiB" in out


def test_the_link_stands_beside_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured, what is usual, and which slot it is."""
    out = printed(GOOD, monkeypatch, capsys)
    assert "25.0 GB/s from pinned memory; the table says 25.2 GB/s; 9.0 GB/s from other" in out
    assert "x16 of PCIe 4 now, x16 of PCIe 4 at most" in out
    assert "nothing to improve was found" in out


def test_what_is_unknown_is_called_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never 0, never None."""
    card = replace(
        CARD,
        context_bytes=None,
        context_source=None,
        held_by_others_bytes=None,
        limit_bytes=6 * GIB,
        link=replace(LINK, pinned_bytes_per_s=None, table_bytes_per_s=None),
    )
    device = replace(DEVICE, holders=(holder(7, None, ours=None),), link_lanes=None)
    host = replace(HOST, group_limit_bytes=16 * GIB, lock_limit_bytes=None, copy_bytes_per_s=None)
    out = printed(
        replace(GOOD, cards=(card,), devices=(device,), host=host, visible_devices="0"),
        monkeypatch,
        capsys,
    )
    assert "unknown for the context" in out
    assert "unknown held by others" in out
    assert "pid 7 (name unknown): unknown" in out
    assert "limited to 16.0 GiB, unknown used" in out
    assert "this process may reserve 6.0 GiB" in out
    assert "CUDA_VISIBLE_DEVICES=0" in out
    assert "None" not in out


def test_a_device_that_is_not_used_is_listed_and_a_problem_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Markup in what others say is text."""
    broken = replace(CARD, problem="[/bold] out of memory")
    idle = replace(DEVICE, index=1, card=None, holders=(holder(9, GIB),))
    torch = replace(TORCH, version=None, problem="no libcudart", sees_cuda=False)
    found = replace(GOOD, cards=(broken,), devices=(DEVICE, idle), torch=torch)
    out = printed(found, monkeypatch, capsys)
    assert "[/bold] out of memory" in out
    assert "Not in use here" in out
    assert "pid 9 (python3): 1.0 GiB" in out
    assert "none: no libcudart" in out


def test_clearing_the_cache_says_what_went_and_does_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our folder alone."""
    folder = tmp_path / "cache" / "tightfit"
    folder.mkdir(parents=True)
    (folder / "lessons.json").write_text("12345")
    (folder.parent / "other").write_text("not ours")
    assert run(["doctor", "--clear-cache"]) == 0
    assert capsys.readouterr().out == f"{folder}: 1 file removed, 5 B.\n"
    assert run(["doctor", "--clear-cache", "--json"]) == 0
    gone = json.loads(capsys.readouterr().out)["cleared"]
    assert gone == {"folder": str(folder), "files": 0, "total_bytes": 0}
    assert run(["doctor", "--clear-cache"]) == 0
    assert "nothing was kept" in capsys.readouterr().out
    assert (folder.parent / "other").read_text() == "not ours"


def test_a_cache_folder_that_is_a_link_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence, and exit code 2."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "tightfit").symlink_to(tmp_path / "elsewhere")
    assert run(["doctor", "--clear-cache"]) == 2
    assert "is a link to" in capsys.readouterr().err
