"""Mutated files; what mutates and opens them is a script in `tools/`, found by its folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
