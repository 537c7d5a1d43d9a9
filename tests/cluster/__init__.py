"""Mirrors `tightfit.cluster`."""
