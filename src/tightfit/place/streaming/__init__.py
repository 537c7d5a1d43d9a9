"""Streaming: weights of a module pass through a fixed ring on the card, with the same bits."""
