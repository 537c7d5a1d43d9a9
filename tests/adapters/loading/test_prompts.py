"""Stand-in tokenizers: seeded words in the frame that each text encoder is used to."""

from __future__ import annotations

from typing import Any

import pytest
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE

from tightfit.adapters.known.encoders import ENCODERS
from tightfit.adapters.loading.prompts import stand_in

QWEN_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n"
)


def encoded(tokenizer: Any, text: str | list[str], **how: Any) -> Any:
    """Padded to ten."""
    terms = {"padding": "max_length", "max_length": 10, "truncation": True, **how}
    return tokenizer(text, return_tensors="pt", **terms)


def test_the_same_prompt_has_the_same_ids_and_another_has_others() -> None:
    """In every tokenizer of the class; spaces do not count, and neither does the case for CLIP."""
    one, two = (stand_in("CLIPTextModel", 49408) for _ in range(2))
    fox = encoded(one, "a red fox").input_ids.tolist()
    assert fox == encoded(two, "A  red fox").input_ids.tolist()
    assert fox != encoded(two, "a red dog").input_ids.tolist()
    ids = encoded(one, ["a red fox", "the red dog"]).input_ids
    assert ids[0, 2] == ids[1, 2]


def test_clip_pools_where_the_text_ends() -> None:
    """One beginning, one end, which has the largest id; cut texts end too."""
    tokenizer = stand_in("CLIPTextModelWithProjection", 49408)
    ids = encoded(tokenizer, ["a fox", "", "word " * 90], max_length=77).input_ids
    assert ids[:, 0].tolist() == [49406] * 3
    assert (ids == 49407).int().argmax(dim=1).tolist() == [3, 1, 76]
    assert ids.argmax(dim=1).tolist() == [3, 1, 76]
    assert tokenizer.model_max_length == 77


def test_a_second_clip_pads_with_an_id_of_its_own() -> None:
    """As SDXL's larger one does."""
    ids = encoded(stand_in("CLIPTextModel", 1024, pads_with=0), "a fox").input_ids[0].tolist()
    assert ids[0] == 1022
    assert ids[3:] == [1023, 0, 0, 0, 0, 0, 0]


def test_t5_ends_and_pads_and_says_what_is_text() -> None:
    """The attention mask covers the words and their end."""
    found = encoded(stand_in("UMT5EncoderModel", 256384), "a red fox")
    assert found.input_ids[0, 3:].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert found.attention_mask[0].tolist() == [1] * 4 + [0] * 6


def test_the_template_of_qwen_image_is_as_long_as_its_pipeline_believes() -> None:
    """It drops 34 states, and what is left is the prompt."""
    tokenizer = stand_in("Qwen2_5_VLForConditionalGeneration", 152064)
    assert len(tokenizer(QWEN_TEMPLATE).input_ids) == 34


def test_the_template_of_hunyuan_leaves_the_prompt_whole() -> None:
    """Its pipeline crops what stands before; not more than one word less stands there."""
    tokenizer = stand_in("LlamaModel", 128320)
    head = str(DEFAULT_PROMPT_TEMPLATE["template"]).split("{}", maxsplit=1)[0]
    crop = DEFAULT_PROMPT_TEMPLATE["crop_start"]
    assert isinstance(crop, int)
    assert crop <= len(tokenizer(head).input_ids) <= crop + 1


def test_a_chat_has_the_marks_of_its_turns() -> None:
    """Mistral's are padded on the left; Qwen's ask for an answer."""
    told = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "text", "text": "fox"}]},
    ]
    mistral = stand_in("Mistral3ForConditionalGeneration", 131072)
    found = mistral.apply_chat_template(
        [told], return_tensors="pt", padding="max_length", truncation=True, max_length=10
    )
    ids = found["input_ids"][0].tolist()
    assert ids[:4] == [11, 11, 1, 17]
    assert (ids[6:8], ids[9]) == ([18, 3], 4)
    assert found["attention_mask"][0].tolist() == [0] * 2 + [1] * 8
    qwen = stand_in("Qwen3ForCausalLM", 151936)
    asks = qwen.apply_chat_template(
        [{"role": "user", "content": "fox"}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    assert asks.startswith("<|im_start|>user\nfox<|im_end|>\n<|im_start|>assistant\n<think>")
    assert qwen(asks).input_ids[0] == 151644


@pytest.mark.parametrize("name", [n for n in ENCODERS if "vision" not in n])
def test_no_id_is_beyond_the_vocabulary_of_its_encoder(name: str) -> None:
    """Of none that we know, marks included."""
    known = ENCODERS[name]
    size = known.arguments.get("text_config", known.arguments).get("vocab_size", 49408)
    tokenizer = stand_in(known.class_name, size)
    text = " ".join(map(str, range(200))) + "".join(tokenizer.dialect.marks)
    ids = tokenizer(text, max_length=512, truncation=True).input_ids
    assert 0 <= min(ids) <= max(ids) < size


def test_words_can_be_added() -> None:
    """As textual inversion does: they come after all others."""
    tokenizer = stand_in("CLIPTextModel", 49408)
    assert tokenizer.add_tokens(["<fox>"]) == 1
    assert tokenizer("a <fox>").input_ids[2] == 49408
    assert len(tokenizer) == 49409
