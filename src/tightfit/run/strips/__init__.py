"""A network run in strips, exactly: what is too large for the card lies on the host."""
