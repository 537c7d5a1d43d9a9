"""For tests of your own: toy VAEs, virtual cards that misbehave on demand, a check for leaks.

The fixture `tightfit_leakcheck` is there for every pytest that runs where tightfit is installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.card.virtual.faults import Form
    from tightfit.testing.switches import faults, oom_after, other_program
    from tightfit.testing.toys import toy_vae, wrap_toy

__all__ = ["Form", "faults", "oom_after", "other_program", "toy_vae", "wrap_toy"]

_HOMES = {
    "Form": "card.virtual.faults",
    "faults": "testing.switches",
    "oom_after": "testing.switches",
    "other_program": "testing.switches",
    "toy_vae": "testing.toys",
    "wrap_toy": "testing.toys",
}


def __getattr__(name: str) -> Any:
    """Names come when they are used: pytest loads the fixture with each of its runs."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"tightfit.{_HOMES[name]}"), name)
    raise AttributeError(f"module `tightfit.testing` has no attribute `{name}`")
