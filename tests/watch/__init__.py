"""Mirrors `tightfit.watch`."""
