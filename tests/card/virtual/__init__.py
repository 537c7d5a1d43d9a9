"""Mirrors `tightfit.card.virtual`."""
