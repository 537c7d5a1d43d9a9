"""WHAT GOES WHERE? Arithmetic only: no torch, no I/O, no clock."""
