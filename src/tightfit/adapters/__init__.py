"""SPEAK THEIR WORDS: diffusers is imported here and nowhere else."""

from tightfit.adapters.specs import Source, find_vae, load_vae, parse_dtype

__all__ = ["Source", "find_vae", "load_vae", "parse_dtype"]
