"""Under which name the shipped table of needs knows a part."""

from __future__ import annotations

from tightfit.adapters.known.architectures import ARCHITECTURES
from tightfit.adapters.known.encoders import ENCODERS
from tightfit.adapters.parts import DECODE, DENOISE, Part


def row_name(part: Part) -> str | None:
    """As `weigh.recognise` calls the architecture of a random part; None where it has no name."""
    if not part.random:
        return None
    if part.stage == DENOISE:
        return f"{part.pipeline}/{part.name}"
    known = ARCHITECTURES if part.stage == DECODE else ENCODERS
    for name, architecture in known.items():
        same = architecture.class_name == part.class_name
        if same and dict(architecture.arguments) == dict(part.config):
            return name
    return None
