"""Mirrors `tightfit.weigh`."""
