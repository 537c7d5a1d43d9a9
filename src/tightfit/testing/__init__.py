"""For tests of your own: toy VAEs, and virtual cards that misbehave on demand."""

from tightfit.card.virtual.faults import Form
from tightfit.testing.faults import faults, oom_after, other_program
from tightfit.testing.toys import toy_vae, wrap_toy

__all__ = ["Form", "faults", "oom_after", "other_program", "toy_vae", "wrap_toy"]
