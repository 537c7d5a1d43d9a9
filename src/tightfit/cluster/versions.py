"""Which versions take part, of what has to be the same on all machines."""

from __future__ import annotations

from collections.abc import Callable


def asked_by_value() -> Callable[[str], dict[str, object]]:
    """A function that tells them, and whether the machine sees a file.

    It travels to other machines as it is, not by name: they may have no tightfit.
    """

    def tell(token: str) -> dict[str, object]:
        import platform
        import socket
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        found = {"python": platform.python_version()}
        for name in ("tightfit", "ray", "torch"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return {"name": socket.gethostname(), "versions": found, "sees": Path(token).exists()}

    return tell


def versions_here() -> dict[str, str]:
    """Of this process."""
    found = asked_by_value()("")["versions"]
    assert isinstance(found, dict)
    return found
