"""Strips: what a network that is run strip by strip needs of the host and of the card."""
