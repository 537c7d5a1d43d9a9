"""One card, and who takes turns on it."""
