"""Mirrors `tightfit.run`."""
