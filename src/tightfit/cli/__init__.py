"""The command line: one command per file, the only place that prints and exits."""

from tightfit.cli.main import main, run

__all__ = ["main", "run"]
