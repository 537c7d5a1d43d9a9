"""Weights by the headers of their files alone: no torch, no weights read."""
