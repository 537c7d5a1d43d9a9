"""Mirrors `tightfit.run.ladder`."""
