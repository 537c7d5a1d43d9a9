"""Whether a cluster can be joined: looked at from a process of its own, for a limited time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tightfit.cluster.versions import versions_here
from tightfit.errors import UsageError

PATIENCE = 60.0
"""Seconds for a cluster to answer."""
_PORT_PATIENCE = 5.0
_NAMES = {"tightfit": "tightfit", "ray": "Ray", "python": "Python", "torch": "PyTorch"}


def reach(address: str, folder: Path, *, patience: float = PATIENCE) -> None:
    """Look whether the cluster at `address` can do a job whose outputs go into `folder`.

    Raises `UsageError` where nothing answers there, where what answers is no Ray that this process
    can join, where a machine of it has other versions than this one, or does not see `folder`.
    """
    if address.startswith("ray://"):
        raise UsageError(
            f"--address {address}: a job runs on a machine of its cluster; start it there with "
            "HOST:PORT, or auto."
        )
    if address != "auto":
        _check_port(address)
    found = _ask(address, folder, patience)
    if "error" in found:
        raise UsageError(f"--address {address}: {_said(found['error'])}")
    here = versions_here()
    for machine in found["machines"]:
        _check_versions(address, here, machine)
        if not machine["sees"]:
            raise UsageError(
                f"--address {address}: {machine['name']} does not see {folder.resolve()}; give a "
                "folder that all machines of the cluster share."
            )


def _check_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--address `{address}`: write HOST:PORT, such as 10.0.0.1:6379, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PORT_PATIENCE).close()
    except OSError as error:
        raise UsageError(
            f"--address {address}: nothing answers there ({error.strerror or error}); start a "
            "cluster with `ray start --head`, or leave --address out."
        ) from None


def _ask(address: str, folder: Path, patience: float) -> dict[str, Any]:
    """What `knock` writes; a Ray that waits for ever, or ends its own process, ends that one."""
    with TemporaryDirectory() as temporary:
        answer = Path(temporary) / "answer.json"
        command = [sys.executable, "-m", "tightfit.cluster.knock", address, str(folder.resolve())]
        try:
            subprocess.run(
                [*command, str(answer)],
                timeout=patience,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no Ray answered within {patience:.0f} seconds"}
        with suppress(OSError, ValueError):
            found = json.loads(answer.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return found
    return {"error": "what answers there is no Ray cluster that can be joined"}


def _said(error: str) -> str:
    """Ray's own words for a person, where they are known."""
    if "Version mismatch" in error:
        return f"other versions run there: {' '.join(error.split())}"
    if "Could not find any running Ray" in error:
        return "no cluster runs on this machine; start one with `ray start --head`."
    if "Failed to connect" in error:
        return (
            "what answers there does not let this machine in. See that this machine is one of the "
            "cluster's (`ray start`), and that the cluster's token is known here "
            "(RAY_AUTH_MODE=token)."
        )
    first = (error.strip() or "Ray gave no reason").splitlines()[0]
    return first if first.endswith(".") else f"{first}."


def _check_versions(address: str, here: Mapping[str, str], machine: Mapping[str, Any]) -> None:
    for key, name in _NAMES.items():
        there = machine["versions"].get(key)
        if there != here.get(key):
            raise UsageError(
                f"--address {address}: {machine['name']} has {name} {there or 'not at all'}, and "
                f"here it is {here.get(key)}; install the same on all machines."
            )
