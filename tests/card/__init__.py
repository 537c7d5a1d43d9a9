"""Mirrors `tightfit.card`."""
