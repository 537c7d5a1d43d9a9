"""How each text or image encoder is called by its pipelines, in shapes; diffusers 0.42."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tightfit.adapters.known.asks import Ask

_STACKED = {
    "Mistral3ForConditionalGeneration": (10, 20, 30),
    "Qwen3ForCausalLM": (9, 18, 27),
}
"""Of FLUX.2's encoders three hidden states are used, side by side."""


def _words(ask: Ask) -> object:
    """An encoder that is given ids alone, and keeps what each layer said."""
    ids = ask.fill.ids(ask.batch, ask.text, vocabulary=ask.config.vocab_size)
    return ask.module(ids, output_hidden_states=True)


def _t5(ask: Ask) -> object:
    ids = ask.fill.ids(ask.batch, ask.text, vocabulary=ask.config.vocab_size)
    return ask.module(ids)[0]


def _umt5(ask: Ask) -> object:
    ids = ask.fill.ids(ask.batch, ask.text, vocabulary=ask.config.vocab_size)
    seen = torch.ones(1, 1, ask.text, ask.text, dtype=torch.bool)
    return ask.module(ids, _mask(ask, seen))[0]


def _language(ask: Ask, **more: Any) -> Any:
    """A language model; the mask is what a padded prompt's becomes inside."""
    vocabulary = ask.config.get_text_config().vocab_size
    seen = torch.ones(1, 1, ask.text, ask.text, dtype=torch.bool).tril()
    return ask.module(
        input_ids=ask.fill.ids(ask.batch, ask.text, vocabulary=vocabulary),
        attention_mask=_mask(ask, seen),
        output_hidden_states=True,
        **more,
    )


def _stacked(ask: Ask) -> object:
    out = _language(ask, use_cache=False)
    layers = _STACKED[type(ask.module).__name__]
    states = torch.stack([out.hidden_states[layer] for layer in layers], dim=1)
    return states.permute(0, 2, 1, 3).flatten(2)


def _mask(ask: Ask, seen: torch.Tensor) -> torch.Tensor:
    return ask.fill.put(seen).expand(ask.batch, -1, -1, -1)


def _pixels(ask: Ask) -> object:
    side = ask.config.image_size
    return ask.module(
        pixel_values=ask.fill.noise(ask.batch, 3, side, side), output_hidden_states=True
    )


ENCODE_CALLS: dict[str, Callable[[Ask], object]] = {
    "CLIPTextModel": _words,
    "CLIPTextModelWithProjection": _words,
    "CLIPVisionModel": _pixels,
    "T5EncoderModel": _t5,
    "UMT5EncoderModel": _umt5,
    "Qwen2_5_VLForConditionalGeneration": _language,
    "Mistral3ForConditionalGeneration": _stacked,
    "Qwen3ForCausalLM": _stacked,
    "Qwen3Model": _language,
    "LlamaModel": _language,
}
