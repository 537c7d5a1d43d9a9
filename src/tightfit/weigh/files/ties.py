"""Tensors that a file holds, or names, more than once and that are loaded once.

What occurs: a tied tensor is absent under its other name (transformers), with a note in the
metadata where ``save_model`` of safetensors wrote the file; or it is stored twice, as single files
of T5 encoders do with their embedding. Equal offsets do not occur: safetensors forbids them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightfit.weigh.files.quantised import companion_of
from tightfit.weigh.files.tensor_header import Header

_T5 = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
}
"""Always one tensor in T5 and UMT5: the copy, and the name it is listed under."""
_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"


def without_copies(header: Header, config: Mapping[str, Any]) -> Header:
    """`header` with each tied tensor listed once, by its keys and by ``config.json``.

    The scales of a packed copy go with it.
    """
    names = header.by_name
    ties = dict(header.ties)
    ties |= {
        other: kept
        for other, kept in header.metadata.items()
        if kept in names and other not in names
    }
    for name in names:
        kept = _kept(name, names, tied_head=_ties_head(config))
        if kept is not None and _alike(names[name], names[kept]):
            ties[name] = kept
    if not ties:
        return header
    tensors = tuple(
        tensor
        for tensor in header.tensors
        if tensor.name not in ties and companion_of(tensor.name, names=names) not in ties
    )
    return replace(header, tensors=tensors, ties=ties)


def _kept(name: str, names: Mapping[str, Any], *, tied_head: bool) -> str | None:
    for copy, kept in _T5.items():
        if name.endswith(copy) and name.removesuffix(copy) + kept in names:
            return name.removesuffix(copy) + kept
    if tied_head and name == _HEAD:
        return next((other for other in names if other.endswith(_EMBEDDING)), None)
    return None


def _alike(one: Any, other: Any) -> bool:
    return bool((one.shape, one.dtype) == (other.shape, other.dtype))


def _ties_head(config: Mapping[str, Any]) -> bool:
    inner = config.get("text_config")
    own = config.get("tie_word_embeddings")
    if own is None and isinstance(inner, Mapping):
        own = inner.get("tie_word_embeddings")
    return own is True
