"""A card that exists on any machine."""
