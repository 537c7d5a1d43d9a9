"""Tests of the scripts in `tools/`, which are no package: they are found by their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "diffusers_client"))
