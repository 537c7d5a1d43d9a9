"""Attention on a virtual card, as real cards run it."""

from __future__ import annotations

from typing import Any

import torch

from tightfit.card.virtual.keeper import DEVICE_TYPE

_aten = torch.ops.aten


def attention(
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention as the fused kernel that real cards run: no score matrix is ever allocated."""
    if torch.is_autocast_enabled(DEVICE_TYPE):
        low = torch.get_autocast_dtype(DEVICE_TYPE)
        query, key, value = query.to(low), key.to(low), value.to(low)
    fused = (
        query.dim() == 4
        and query.shape[-1] == value.shape[-1]
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and dropout_p == 0.0
        and not enable_gqa
        and not (torch.is_grad_enabled() and query.requires_grad)
        and (attn_mask is None or (attn_mask.dtype != torch.bool and attn_mask.dim() in (2, 4)))
    )
    if not fused:
        result: torch.Tensor = func(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return result
    out, _ = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
    return out  # type: ignore[no-any-return]
