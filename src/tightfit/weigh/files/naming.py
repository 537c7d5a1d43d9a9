"""How an architecture calls its tensors, and which of its sizes tell its members apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tightfit.weigh.files.tensor_header import Header

PREFIXES = (
    "",
    "model.diffusion_model.",
    "diffusion_model.",
    "model.model.",
    "transformer.",
    "net.",
    "module.",
    "first_stage_model.",
    "vae.",
    "model.language_model.",
    "language_model.model.",
    "model.",
    "text_model.",
    "text_model.model.",
)
"""What may stand before the names of an architecture's own tensors."""


@dataclass(frozen=True)
class Known:
    """An architecture that we know by name.

    Attributes:
        name: as on the command line: ``flux.1-dev/transformer``, ``wan2.1-vae``, ``t5-xxl``.
        class_name: of diffusers or transformers.
        part: what pipelines call it: ``transformer``, ``unet``, ``vae`` or ``text_encoder``.
        parameters: how many values it has.
    """

    name: str
    class_name: str
    part: str
    parameters: int


@dataclass(frozen=True)
class Naming:
    """One way to call the tensors of an architecture: diffusers', or the original checkpoint's.

    Attributes:
        marks: tensors that together only this architecture has, under this naming.
        layers: containers whose members are counted, with the dot.
        sizes: tensors whose values are counted, 0 for one that is absent. Counts, not shapes: they
            are the same however the tensor is packed.
        order: names, or their beginnings, in the order they run; `#` stands for numbers that fall.
    """

    marks: tuple[str, ...]
    layers: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Architectures that differ in sizes alone.

    Attributes:
        namings: of the same tensors; all count the same layers and sizes, in the same order.
        members: by those counts.
        whole: the file holds nothing else, so that its values must be about as many as the
            member's parameters.
    """

    namings: tuple[Naming, ...]
    members: Mapping[tuple[int, ...], Known] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True)
class Match:
    """A header that speaks a naming, with what stands before its names."""

    family: Family
    naming: Naming
    prefix: str

    def counts(self, header: Header) -> tuple[int, ...]:
        """Members of the containers, then values of the tensors that the naming lists."""
        layers = (_members(header, self.prefix + container) for container in self.naming.layers)
        sizes = (_values(header, self.prefix + name) for name in self.naming.sizes)
        return (*layers, *sizes)


def match(header: Header, families: tuple[Family, ...]) -> Match | None:
    """The first of `families`, and of its namings, whose marks are all in `header`."""
    names = header.by_name
    for family in families:
        for naming in family.namings:
            for prefix in PREFIXES:
                if all(prefix + mark in names for mark in naming.marks):
                    return Match(family, naming, prefix)
    return None


def _members(header: Header, container: str) -> int:
    length = len(container)
    return len(
        {name[length:].partition(".")[0] for name in header.by_name if name.startswith(container)}
    )


def _values(header: Header, name: str) -> int:
    tensor = header.by_name.get(name)
    return tensor.elements if tensor is not None else 0
