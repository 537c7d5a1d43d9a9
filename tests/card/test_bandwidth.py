"""Rates of this machine: what is measured is said, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tightfit.card import bandwidth
from tightfit.card.bandwidth import disk_rate, host_copy_rate
from tightfit.units import MIB

SIZE = 16 * MIB


def test_a_folder_is_measured_with_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    """One of so many bytes, on the same disk; it never has a name."""
    rate = disk_rate(tmp_path, most=SIZE)
    assert rate.bytes_per_s is not None
    assert rate.bytes_per_s > 0
    assert "16.0 MiB of a fresh file" in rate.about
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_a_folder_that_is_not_there_yet_stays_so(tmp_path: Path) -> None:
    """The disk is that of the nearest folder above it."""
    rate = disk_rate(tmp_path / "a" / "b", most=SIZE)
    assert rate.bytes_per_s is not None
    assert str(tmp_path) in rate.about
    assert not (tmp_path / "a").exists()


def test_a_file_is_read_and_stays_as_it_was(tmp_path: Path) -> None:
    """No more than was asked for; the file is not touched."""
    path = tmp_path / "weights.bin"
    content = np.random.default_rng(0).bytes(3 * MIB)
    path.write_bytes(content)
    assert f"3.0 MiB of {path}" in disk_rate(path).about
    assert "2.0 MiB" in disk_rate(path, most=2 * MIB).about
    assert path.read_bytes() == content


def test_a_file_too_small_to_tell_has_no_rate(tmp_path: Path) -> None:
    """Unknown is None."""
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100)
    assert disk_rate(path).bytes_per_s is None
    path.write_bytes(b"")
    assert disk_rate(path).bytes_per_s is None


def test_a_time_limit_ends_it_early(tmp_path: Path) -> None:
    """With no time at all, a few chunks are written and one is read."""
    rate = disk_rate(tmp_path, most=1024 * MIB, seconds=0)
    assert rate.bytes_per_s is not None
    assert "8.0 MiB of" in rate.about


def test_a_full_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so rather than fill the rest."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=SIZE))
    rate = disk_rate(tmp_path, most=SIZE)
    assert rate.bytes_per_s is None
    assert "too little is free" in rate.about


@pytest.mark.parametrize("call", ["fsync", "write", "readv"])
def test_a_disk_that_fails_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Nothing is raised."""

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    rate = disk_rate(tmp_path, most=SIZE)
    assert rate.bytes_per_s is None
    assert "Input/output error" in rate.about


def test_pages_that_could_not_be_forgotten_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system cannot be asked, the rate may be that of memory."""
    monkeypatch.delattr(os, "posix_fadvise")
    assert "maybe from the page cache" in disk_rate(tmp_path, most=SIZE).about


def test_a_folder_in_memory_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate of tmpfs is none of a disk."""
    monkeypatch.setattr(bandwidth, "_kind_of_disk", lambda _: "tmpfs")
    assert "in memory and on no disk" in disk_rate(tmp_path, most=SIZE).about


def test_memory_is_copied() -> None:
    """The best of several copies, by one thread."""
    rate = host_copy_rate(size=MIB, copies=2)
    assert rate.bytes_per_s is not None
    assert rate.bytes_per_s > 0
    assert "1.0 MiB" in rate.about


def test_measuring_costs_no_torch() -> None:
    """The disk and the host are measured without a device."""
    code = "import sys, tightfit.card.bandwidth; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
