"""What fits, before anything is loaded."""
