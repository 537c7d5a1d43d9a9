"""Weights that are used in another dtype than they are stored in: one copy, just before its use."""
