"""A job that is half way: what it needs to go on as if it had never stopped, and its file."""
