"""Pictures, films and latents: the only place where Pillow and PyAV are imported."""
