"""What is known by name: classes, sizes, calls."""
