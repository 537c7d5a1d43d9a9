"""Mirrors `tightfit.testing`."""
