"""The host's memory: what there is, what our group of processes may use, what can be pinned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 2**60  # version 1 says "none" with a number near 2**63
_FILES = {
    # What bounds, what is held, and the page cache in it, by version of the interface.
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file total_active_file"),
    2: ("memory.max", "memory.current", "inactive_file active_file"),
}


@dataclass(frozen=True)
class Group:
    """A control group with a memory limit; sizes in bytes.

    Attributes:
        limit: the most that all its processes may hold.
        used: what they hold, page cache included; None where it is not told.
        cache: the page cache in it, which is given up under pressure; None where it is not told.
    """

    limit: int
    used: int | None = None
    cache: int | None = None

    @property
    def held(self) -> int | None:
        """What cannot be given up."""
        return None if self.used is None else max(0, self.used - (self.cache or 0))

    @property
    def left(self) -> int:
        """What its processes may still take together."""
        return max(0, self.limit - (self.held or 0))


@dataclass(frozen=True)
class HostMemory:
    """One look at the host; sizes in bytes.

    Attributes:
        ram: what the machine has.
        ram_available: what can be taken without swapping, as far as the machine goes.
        group: of the groups that we are in, the one with the least left; None if none has a limit.
        lock_limit: RLIMIT_MEMLOCK, which bounds `mlock` and AMD's driver but not NVIDIA's; None
            where there is no limit.
    """

    ram: int
    ram_available: int
    group: Group | None
    lock_limit: int | None

    @property
    def total(self) -> int:
        """The smaller of RAM and the group's limit."""
        return self.ram if self.group is None else min(self.ram, self.group.limit)

    @property
    def available(self) -> int:
        """What may be taken now: of the machine, and within the group's limit."""
        return (
            self.ram_available if self.group is None else min(self.ram_available, self.group.left)
        )

    @property
    def pinnable(self) -> int:
        """What may be pinned for a CUDA card now: pinned pages are never swapped or given up."""
        return self.available

    @property
    def lockable(self) -> int:
        """What may be pinned where RLIMIT_MEMLOCK counts too."""
        return self.available if self.lock_limit is None else min(self.available, self.lock_limit)


def read_host_memory() -> HostMemory:
    """Look now."""
    memory = psutil.virtual_memory()
    groups = sorted(_groups(), key=lambda group: (group.left, group.limit))
    return HostMemory(
        ram=memory.total,
        ram_available=memory.available,
        group=groups[0] if groups else None,
        lock_limit=_lock_limit(),
    )


def _groups() -> Iterator[Group]:
    """Every group above this process that has a limit, in either version of the interface."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    paths = {"": "/", "memory": "/"}
    for line in lines:
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    for version, top, path in (
        (2, _GROUPS, paths[""]),
        (1, _GROUPS / "memory", paths["memory"]),
    ):
        # In a container the path may be the machine's, and only the top is there.
        for folder in _upwards(top, path):
            group = _group(folder, version)
            if group is not None:
                yield group


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """From the folder of the group to `top`."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for count in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:count])


def _group(folder: Path, version: int) -> Group | None:
    most, now, cached = _FILES[version]
    limit = _number(folder / most)
    if limit is None or limit >= _NO_LIMIT:
        return None
    return Group(limit, _number(folder / now), _cache(folder / "memory.stat", cached.split()))


def _number(path: Path) -> int | None:
    """The number in the file; None for ``max``, or where there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cache(path: Path, names: list[str]) -> int | None:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        found = [int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names]
    except (OSError, ValueError):
        return None
    return sum(found) if found else None


def _lock_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
