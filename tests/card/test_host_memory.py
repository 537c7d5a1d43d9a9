"""The host's memory: RAM, the limits of control groups, and what may be pinned."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.card import host_memory
from tightfit.card.host_memory import Group, HostMemory, read_host_memory
from tightfit.units import GIB, KIB, MIB

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of 64 GiB whose process is in the groups of `own`, with the files of `groups`."""

    def make(own: str, groups: dict[str, dict[str, str]], *, available: int = 48 * GIB) -> Path:
        top, listed = tmp_path / "cgroup", tmp_path / "own"
        listed.write_text(own)
        for folder, files in groups.items():
            (top / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (top / folder / name).write_text(text)
        monkeypatch.setattr(host_memory, "_GROUPS", top)
        monkeypatch.setattr(host_memory, "_OWN_GROUPS", listed)
        ram = SimpleNamespace(total=64 * GIB, available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: ram)
        return top

    return make


def v2(limit: int | str, used: int, *, cache: int = 0) -> dict[str, str]:
    """The files of a group, as the second version of the interface has them."""
    stat = f"anon {used - cache}\ninactive_file {cache}\nactive_file 0\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def v1(limit: int, used: int, *, cache: int = 0) -> dict[str, str]:
    """As the first version has them."""
    stat = f"inactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": stat,
    }


def test_without_a_limit_the_machine_is_what_there_is(machine: Machine) -> None:
    """``max``, a number near 2**63, an absent file: no limit is no group."""
    nothing = {"": v2("max", GIB), "memory": v1(2**63 - 4096, GIB)}
    for own, groups in (("0::/\n", nothing), ("", {}), ("nonsense", {})):
        machine(own, groups)
        memory = read_host_memory()
        assert memory.group is None
        assert (memory.total, memory.available) == (64 * GIB, 48 * GIB)


@pytest.mark.parametrize("own", ["0::/\n", "0::/docker/not-mounted-here\n", ""])
def test_a_container_sees_its_limit_at_the_top(machine: Machine, own: str) -> None:
    """Whatever path the process is told that it is in."""
    machine(own, {"": v2(16 * GIB, 5 * GIB, cache=3 * GIB)})
    memory = read_host_memory()
    assert memory.group == Group(16 * GIB, 5 * GIB, 3 * GIB)
    assert memory.total == 16 * GIB
    assert memory.available == 14 * GIB  # the page cache is given up under pressure


def test_a_limit_of_the_first_version_counts_too(machine: Machine) -> None:
    """With the figures of the whole group, not of its top folder alone."""
    machine("4:memory:/jobs/a\n3:cpu:/\n0::/\n", {"memory/jobs/a": v1(8 * GIB, GIB, cache=MIB)})
    assert read_host_memory().group == Group(8 * GIB, GIB, MIB)


def test_of_several_groups_the_one_with_the_least_left_counts(machine: Machine) -> None:
    """A group in a group: others may have used up the outer one's limit."""
    machine("0::/slice/job\n", {"slice/job": v2(8 * GIB, GIB), "slice": v2(10 * GIB, 9 * GIB)})
    memory = read_host_memory()
    assert (memory.group, memory.available) == (Group(10 * GIB, 9 * GIB, 0), GIB)
    machine("0::/slice/job\n", {"slice": v2("max", 9 * GIB)})
    assert read_host_memory().available == 7 * GIB


def test_a_full_machine_is_full_whatever_the_group_may(machine: Machine) -> None:
    """The smaller of the two, and never below zero."""
    machine("0::/\n", {"": v2(16 * GIB, GIB)}, available=2 * GIB)
    assert read_host_memory().available == 2 * GIB
    machine("0::/\n", {"": v2(GIB, 2 * GIB)})
    assert read_host_memory().available == 0


def test_figures_that_a_group_does_not_tell_are_unknown(machine: Machine) -> None:
    """The limit alone is enough."""
    machine("0::/\n", {"": {"memory.max": f"{GIB}"}})
    group = read_host_memory().group
    assert group == Group(GIB, None, None)
    assert group.held is None
    machine("0::/\n", {"": {"memory.max": f"{GIB}", "memory.stat": "inactive_file lots\n"}})
    assert read_host_memory().group == Group(GIB, None, None)


@pytest.mark.parametrize(("soft", "limit"), [(64 * KIB, 64 * KIB), (resource.RLIM_INFINITY, None)])
def test_the_lock_limit_is_the_soft_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, soft: int, limit: int | None
) -> None:
    """None where there is none; it bounds what locks pages, and not what CUDA pins."""
    machine("", {})
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, resource.RLIM_INFINITY))
    memory = read_host_memory()
    assert memory.lock_limit == limit
    assert memory.pinnable == memory.available == 48 * GIB
    assert memory.lockable == min(memory.available, limit or memory.available)


SIZES = st.integers(0, 2**45)


@given(SIZES, SIZES, st.none() | st.builds(Group, SIZES, st.none() | SIZES, st.none() | SIZES))
def test_no_more_can_be_taken_than_there_is(ram: int, free: int, group: Group | None) -> None:
    """Pinned or not, by the machine or by the group."""
    memory = HostMemory(ram, min(ram, free), group, 2**16)
    assert 0 <= memory.lockable <= memory.pinnable <= memory.available <= memory.total <= ram


def test_this_machine_has_some_memory() -> None:
    """The real files of this process."""
    memory = read_host_memory()
    assert 0 < memory.available <= memory.total <= psutil.virtual_memory().total
