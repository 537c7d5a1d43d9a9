"""SHOW IT: reports and charts, from records alone."""
