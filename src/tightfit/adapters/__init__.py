"""SPEAK THEIR WORDS: diffusers is imported here and nowhere else, and only when it is needed."""

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.known.calls import call_of, passes_of
from tightfit.adapters.known.sizes import cast_sizes, padding, seq_lengths, usual_size
from tightfit.adapters.parts import Part, find_parts, load_part, outline_part, stages_of
from tightfit.adapters.specs import (
    Source,
    fetch_vae,
    find_vae,
    known_hashes,
    load_vae,
    outline_vae,
    parse_dtype,
    stored_dtype,
)

__all__ = [
    "Part",
    "Source",
    "adapt",
    "call_of",
    "cast_sizes",
    "fetch_vae",
    "find_parts",
    "find_vae",
    "known_hashes",
    "load_part",
    "load_vae",
    "outline_part",
    "outline_vae",
    "padding",
    "parse_dtype",
    "passes_of",
    "seq_lengths",
    "stages_of",
    "stored_dtype",
    "usual_size",
]
