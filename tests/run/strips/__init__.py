"""Mirrors `tightfit.run.strips`."""
