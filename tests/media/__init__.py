"""Mirrors `tightfit.media`."""
