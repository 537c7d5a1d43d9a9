"""More work than one card, more cards than one: the only importer of Ray."""
