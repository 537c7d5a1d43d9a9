"""A network run in strips: what belongs together, how high a strip is, and what lies where."""
