"""A network as it ran: every operator, what it read and what it made."""
