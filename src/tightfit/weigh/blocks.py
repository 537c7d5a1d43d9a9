"""Blocks: what a model's weights are made of, as units that move. Values alone; no torch.

A header (`weigh.header_blocks`) and a live module (`weigh.module_blocks`) are both told in these
words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Leaf:
    """What one module owns directly.

    Attributes:
        name: path from the root, such as ``transformer_blocks.0.attn.to_q``; empty for the root.
        stored_bytes: sum of what it owns, as it is kept and moved; ties once.
        converted_bytes: of the copies in the compute dtype that exist while it runs, 0 where none
            is needed.
        largest_bytes: stored bytes of its largest tensor.
        elements: logical values, whatever they are packed into.
    """

    name: str
    stored_bytes: int
    converted_bytes: int = 0
    largest_bytes: int = 0
    elements: int = 0


@dataclass(frozen=True)
class Block:
    """Weights that move as one: a transformer block, or one part of the rest outside blocks.

    Attributes:
        name: path from the root, such as ``transformer_blocks.0``; empty for the root's own.
        leaves: in the order they run, as far as it is known; at least one.
    """

    name: str
    leaves: tuple[Leaf, ...]

    def __post_init__(self) -> None:
        """A block that holds nothing is no block."""
        if not self.leaves:
            raise ValueError(f"block `{self.name}` has no leaves")

    @property
    def stored_bytes(self) -> int:
        """What it takes where it is resident, and what is copied where it is streamed."""
        return sum(leaf.stored_bytes for leaf in self.leaves)

    @property
    def converted_bytes(self) -> int:
        """The largest leaf's copies: leaves convert one after another, into one scratch."""
        return max(leaf.converted_bytes for leaf in self.leaves)

    @property
    def total_converted_bytes(self) -> int:
        """The copies of all leaves, were they kept until the block has run."""
        return sum(leaf.converted_bytes for leaf in self.leaves)

    @property
    def largest_leaf(self) -> Leaf:
        """The leaf with the most stored bytes: the moving unit below the block."""
        return max(self.leaves, key=lambda leaf: leaf.stored_bytes)

    @property
    def largest_bytes(self) -> int:
        """Stored bytes of its largest tensor."""
        return max(leaf.largest_bytes for leaf in self.leaves)

    @property
    def elements(self) -> int:
        """Logical values, whatever they are packed into."""
        return sum(leaf.elements for leaf in self.leaves)


@dataclass(frozen=True)
class Weights:
    """All blocks of one model, in the order they run as far as it is known.

    Attributes:
        name: its architecture, class or file name.
        blocks: each weight in exactly one of them.
        order: ``dry run`` where the order was seen, ``keys`` where names alone tell it.
    """

    name: str
    blocks: tuple[Block, ...]
    order: str

    @property
    def stored_bytes(self) -> int:
        """All of it, as it is kept."""
        return sum(block.stored_bytes for block in self.blocks)

    @property
    def converted_bytes(self) -> int:
        """The largest leaf's copies: the scratch that the whole model needs."""
        return max((block.converted_bytes for block in self.blocks), default=0)

    def apart(self) -> Weights:
        """The same with each leaf a block of its own, for whoever cannot move more at once."""
        leaves = (leaf for block in self.blocks for leaf in block.leaves)
        return replace(self, blocks=tuple(Block(leaf.name, (leaf,)) for leaf in leaves))

    @property
    def largest_block(self) -> int:
        """Stored bytes of the largest block: a slot for whole blocks; 0 for no blocks."""
        return max((block.stored_bytes for block in self.blocks), default=0)

    @property
    def elements(self) -> int:
        """Logical values, whatever they are packed into."""
        return sum(block.elements for block in self.blocks)
