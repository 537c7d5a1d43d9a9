"""Many latents in one file: for training, where a file for each is too many."""
