"""Mirrors `tightfit.plan`."""
