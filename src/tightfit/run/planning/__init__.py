"""Carries what was weighed, and what a card has, to the arithmetic of `plan`. No torch."""
