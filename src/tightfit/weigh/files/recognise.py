"""Which architecture a header is of: by names, by counts of layers, and by a few sizes."""

from __future__ import annotations

from tightfit.weigh.files.autoencoders import AUTOENCODERS, QWEN_IMAGE
from tightfit.weigh.files.denoisers import DENOISERS
from tightfit.weigh.files.naming import Known, Match, match
from tightfit.weigh.files.tensor_header import Header
from tightfit.weigh.files.text_encoders import TEXT_ENCODERS

__all__ = ["FAMILIES", "Known", "recognise", "speaks"]

FAMILIES = (*DENOISERS, *AUTOENCODERS, *TEXT_ENCODERS)
_TOLERANCE = 0.02
"""Share by which values may differ from a member's parameters: stored tables, no bias, a head."""


def recognise(header: Header) -> Known | None:
    """The architecture of `header`, packed or not; None where it is not one that we know.

    Of one model: a bundle is taken apart first (`parts_of_header`). Models that differ in nothing
    but their weights have one name: FLUX.1-Kontext-dev is `flux.1-dev`, Wan 2.2's 14B T2V
    `wan2.1-t2v-14b`, Qwen-Image-Edit `qwen-image`, the VAE of SD 1.5 `sdxl-vae`, that of SD 3
    `flux-vae`.
    """
    found = speaks(header)
    if found is None:
        return None
    known = found.family.members.get(found.counts(header))
    if known is None or (found.family.whole and not _as_many(header, known)):
        return None
    same_tensors = known.name == "wan2.1-vae" and header.class_name == QWEN_IMAGE.class_name
    return QWEN_IMAGE if same_tensors else known


def speaks(header: Header) -> Match | None:
    """The family whose names `header` uses, also where its sizes are none that we know."""
    return match(header, FAMILIES)


def _as_many(header: Header, known: Known) -> bool:
    return abs(header.elements - known.parameters) <= _TOLERANCE * known.parameters
