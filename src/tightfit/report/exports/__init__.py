"""A trace in the formats of other programs, and in tables."""
