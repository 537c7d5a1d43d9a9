"""A pipeline that somebody has loaded."""
