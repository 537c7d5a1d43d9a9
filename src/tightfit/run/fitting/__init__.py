"""A module that fits: each call is weighed, its weights are placed for it, and it is run."""
