"""SPEAK THEIR WORDS: diffusers is imported here and nowhere else, and only when it is needed."""

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.specs import (
    Source,
    fetch_vae,
    find_vae,
    load_vae,
    outline_vae,
    parse_dtype,
    stored_dtype,
)

__all__ = [
    "Source",
    "adapt",
    "fetch_vae",
    "find_vae",
    "load_vae",
    "outline_vae",
    "parse_dtype",
    "stored_dtype",
]
