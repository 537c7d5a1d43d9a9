"""The public cases, one file per group; names begin with the id."""
