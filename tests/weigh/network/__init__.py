"""Mirrors `tightfit.weigh.network`."""
