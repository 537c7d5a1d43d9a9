"""What diffusers' tests download: tokenizers, configurations and tiny models, made here instead.

Their ids name repositories of a hub. A stand-in has the class that is asked for and is as small
as the one there; its vocabulary is letters, its weights are seeded.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

LETTERS = string.ascii_lowercase + string.digits + "!\"'(),-.:;?_/"
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


_QWENS = 151643
"""The number of Qwen's first special token."""


class NotHere(OSError):
    """It would have to be downloaded, and there is no stand-in for it."""


def clip(kind: Any, **more: Any) -> Any:
    """Letters, with and without an end of word; the end of the text has the highest number."""
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return kind(_numbered(words), [], **{"model_max_length": 77, **more})


def unigram(kind: Any, **more: Any) -> Any:
    """Letters, as T5 spells them."""
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *LETTERS, *string.ascii_uppercase]
    scored = [(piece, 0.0 if at < 3 else -2.0) for at, piece in enumerate(pieces)]
    return kind(scored, extra_ids=0, **{"model_max_length": 512, **more})


def qwen(kind: Any, *, first: int | None = None, **more: Any) -> Any:
    """Bytes, then the special tokens; with `first`, under the numbers that Qwen's models know."""
    from tokenizers import pre_tokenizers

    words = _numbered(sorted(pre_tokenizers.ByteLevel.alphabet()))
    names = "im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end"
    names += " vision_start vision_end vision_pad image_pad video_pad"
    special = ["<|endoftext|>", *(f"<|{name}|>" for name in names.split())]
    start = len(words) if first is None else first
    words |= {token: start + at for at, token in enumerate(special)}
    made = kind(words, [], **{"model_max_length": 512, **more})
    made.add_special_tokens({"additional_special_tokens": special[1:]})
    made.chat_template = CHAT
    return made


def pieces(kind: Any, **more: Any) -> Any:
    """Letters, as Llama and Gemma spell them."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>", "</s>"]
    made = kind(
        _numbered([*special, "\u2581", *LETTERS, *string.ascii_uppercase]),
        [],
        **{"model_max_length": 512, "pad_token": "<pad>", **more},
    )
    made.chat_template = CHAT
    return made


def words(kind: Any, **more: Any) -> Any:
    """Letters, as BERT spells them."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    spelt = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return kind(_numbered(spelt), **{"model_max_length": 512, **more})


def roberta(kind: Any, **more: Any) -> Any:
    """Bytes, as RoBERTa numbers them."""
    from tokenizers import pre_tokenizers

    spelt = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return kind(_numbered([*spelt, "<mask>"]), [], **{"model_max_length": 77, **more})


def xlm(kind: Any, **more: Any) -> Any:
    """Letters, as XLM-RoBERTa spells them."""
    spelt = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *LETTERS, "<mask>"]
    scored = [(piece, 0.0 if at < 4 else -2.0) for at, piece in enumerate(spelt)]
    return kind(scored, **{"model_max_length": 77, **more})


SPELLINGS: dict[str, Callable[..., Any]] = {
    "CLIP": clip,
    "T5": unigram,
    "Qwen2": qwen,
    "Gemma": pieces,
    "Llama": pieces,
    "Bert": words,
    "Roberta": roberta,
    "XLMRoberta": xlm,
}
"""By the name of a tokenizer's class, without ``Tokenizer`` and what follows."""

USUAL = {
    "clip": "CLIP",
    "t5": "T5",
    "T5Model": "T5",
    "umt5": "T5",
    "gemma": "Gemma",
    "LlamaForCausalLM": "Llama",
    "llama-tokenizer": "Llama",
    "hunyaunvideo": "Llama",
    "glm": "Llama",
    "BertModel": "Bert",
    "roberta": "Roberta",
    "mclip": "XLMRoberta",
    "Qwen": "Qwen2",
}
"""What `AutoTokenizer` would take, by a part of the hub's id."""

_T5: dict[str, Any] = {
    "vocab_size": 1103,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 5,
    "num_heads": 4,
    "dropout_rate": 0.0,
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-random-t5": ("T5Config", _T5),
    "tiny-random-umt5": ("UMT5Config", _T5),
    "tiny-random-BertModel": (
        "BertConfig",
        {
            "vocab_size": 1124,
            "hidden_size": 32,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "intermediate_size": 37,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    ),
    "tiny-random-LlamaForCausalLM": (
        "LlamaConfig",
        {
            "vocab_size": 1000,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        },
    ),
    "tiny-random-SiglipVisionModel": (
        "SiglipVisionConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 37,
            "image_size": 30,
            "patch_size": 2,
        },
    ),
}
"""By the last part of the hub's id: the class of the configuration, and what is small in it.

Nothing
is dropped at random: tests call models in training mode, too.
"""


def _numbered(spelt: list[str]) -> dict[str, int]:
    return {piece: at for at, piece in enumerate(dict.fromkeys(spelt))}


def _last(where: object) -> str | None:
    """The last part of a hub's id; None for a folder or a file that is here."""
    text = str(where)
    return None if Path(text).exists() or text.count("/") != 1 else text.rsplit("/", 1)[1]


def _tokenizer(kind: Any, where: str, more: dict[str, Any]) -> Any:
    import transformers

    if kind is None or kind.__name__ == "PreTrainedTokenizerFast":
        found = [spelling for part, spelling in USUAL.items() if part in where]
        if not found:
            raise NotHere(f"There is no stand-in for the tokenizer of `{where}`.")
        kind = getattr(transformers, f"{found[-1]}Tokenizer")
    spell = SPELLINGS.get(kind.__name__.partition("Tokenizer")[0])
    if spell is None:
        raise NotHere(f"There is no stand-in for a {kind.__name__} (`{where}`).")
    wanted = ("model_max_length", "padding_side")
    return spell(kind, **{key: value for key, value in more.items() if key in wanted})


def _config(where: str) -> Any:
    import transformers

    found = CONFIGS.get(where)
    if found is None:
        raise NotHere(f"There is no stand-in for the configuration of `{where}`.")
    kind, small = found
    return getattr(transformers, kind)(**small)


def _model(kind: Any, where: str, more: dict[str, Any]) -> Any:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        made = kind(_config(where)).eval()
    finally:
        torch.set_rng_state(state)
    dtype = more.get("torch_dtype", more.get("dtype"))
    return made if dtype is None else made.to(dtype)


def _processor(kind: Any, where: str, more: dict[str, Any]) -> Any:
    import transformers

    del more
    if "Qwen2VL" not in where:
        raise NotHere(f"There is no stand-in for the processor of `{where}`.")
    spoken = qwen(transformers.Qwen2Tokenizer, first=_QWENS)
    images = transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=28 * 28 * 16)
    made = transformers.Qwen2VLProcessor if kind is None else kind
    videos = transformers.Qwen2VLVideoProcessor()
    return made(images, spoken, videos, chat_template=CHAT)


def _extractor(kind: Any, where: str, more: dict[str, Any]) -> Any:
    del where
    return kind(**{key: value for key, value in more.items() if key in ("size", "crop_size")})


@contextmanager
def stand_ins() -> Iterator[None]:
    """While inside, what is on a hub is made here; what cannot be raises `NotHere`."""
    import transformers
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    def instead(owner: Any, make: Callable[[Any, str, dict[str, Any]], Any], *, auto: bool) -> Any:
        true = owner.from_pretrained.__func__

        def from_pretrained(cls: Any, where: Any, *args: Any, **more: Any) -> Any:
            last = _last(where)
            if last is None:
                return true(cls, where, *args, **more)
            return make(None if auto else cls, last, more)

        return patch.object(owner, "from_pretrained", classmethod(from_pretrained))

    doors: list[tuple[Any, Callable[[Any, str, dict[str, Any]], Any], bool]] = [
        (PreTrainedTokenizerBase, _tokenizer, False),
        (transformers.AutoTokenizer, _tokenizer, True),
        (transformers.AutoConfig, lambda _, where, __: _config(where), True),
        (transformers.PretrainedConfig, lambda _, where, __: _config(where), False),
        (transformers.PreTrainedModel, _model, False),
        (transformers.AutoProcessor, _processor, True),
        (transformers.ProcessorMixin, _processor, False),
        (FeatureExtractionMixin, _extractor, False),
        (ImageProcessingMixin, _extractor, False),
    ]
    with ExitStack() as undo:
        for owner, make, auto in doors:
            undo.enter_context(instead(owner, make, auto=auto))
        yield
