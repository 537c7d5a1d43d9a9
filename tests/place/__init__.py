"""Mirrors `tightfit.place`."""
