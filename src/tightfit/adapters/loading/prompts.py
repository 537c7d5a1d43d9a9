"""A stand-in for tokenizers, whose vocabularies only their makers have: seeded ids for words.

The same word has the same id wherever it stands, and another word most likely another. All else is
as the text encoder of that class is used to: where a text begins and ends, the padding, the most
tokens it takes, and the marks that templates put around a prompt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

STAND_IN = "StandInTokenizer"
"""The name of its class, in the index of a pipeline that was saved with one."""
_WORDS = re.compile(r"\w+|\n|[^\w\s]")
_FIRST_WORD = 32
"""Ids below are marks in vocabularies that begin with them."""


@dataclass(frozen=True)
class Dialect:
    """How a text encoder is spoken to.

    Attributes:
        vocabulary: how many ids there are.
        length: the most tokens of a text.
        words: ids of words, [first, last).
        marks: ids of what is no word.
        begin, end, pad: marks; a text has neither beginning nor end where those are None.
        pads_left: whether what is missing is put before a text.
        lower: whether letters lose their case.
        turns: of a chat, by role: what is put before and after the content.
        answer: what asks for an answer, and what also says that there shall be no thinking.
    """

    vocabulary: int
    length: int
    words: tuple[int, int]
    marks: Mapping[str, int]
    pad: str
    begin: str | None = None
    end: str | None = None
    pads_left: bool = False
    lower: bool = False
    turns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    answer: tuple[str, str] = ("", "")


def dialect_of(class_name: str, vocabulary: int) -> Dialect:
    """Of a text encoder of transformers that has `vocabulary` ids."""
    if class_name.startswith("CLIP"):
        marks = {"<|startoftext|>": vocabulary - 2, "<|endoftext|>": vocabulary - 1}
        begin, end = marks
        words = (_FIRST_WORD, vocabulary - 2)
        return Dialect(vocabulary, 77, words, marks, pad=end, begin=begin, end=end, lower=True)
    if class_name.startswith(("T5", "UMT5")):
        marks = {"<pad>": 0, "</s>": 1, "<unk>": 2}
        words = (_FIRST_WORD, vocabulary)
        return Dialect(vocabulary, 512, words, marks, pad="<pad>", end="</s>")
    if class_name.startswith("Mistral"):
        return _mistral(vocabulary)
    if class_name.startswith("Llama"):
        return _llama(vocabulary)
    return _qwen(vocabulary)


def _mistral(vocabulary: int) -> Dialect:
    marks = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4, "<pad>": 11}
    marks |= {"[SYSTEM_PROMPT]": 17, "[/SYSTEM_PROMPT]": 18}
    turns = {
        "system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        "user": ("[INST]", "[/INST]"),
        "assistant": ("", "</s>"),
    }
    words = (_FIRST_WORD, vocabulary)
    return Dialect(
        vocabulary,
        131072,
        words,
        marks,
        pad="<pad>",
        begin="<s>",
        pads_left=True,
        turns=turns,
    )


def _llama(vocabulary: int) -> Dialect:
    first = min(128000, vocabulary - 16)
    marks = {
        "<|begin_of_text|>": first,
        "<|end_of_text|>": first + 1,
        "<|start_header_id|>": first + 6,
        "<|end_header_id|>": first + 7,
        "<|eot_id|>": first + 9,
        "<pad>": min(128258, vocabulary - 1),
    }
    words, begin = (_FIRST_WORD, first), "<|begin_of_text|>"
    return Dialect(vocabulary, 8192, words, marks, pad="<pad>", begin=begin)


def _qwen(vocabulary: int) -> Dialect:
    first = min(151643, vocabulary - 16)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    marks = {name: first + at for at, name in enumerate(names)}
    roles = ("system", "user", "assistant")
    turns = {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in roles}
    asks = "<|im_start|>assistant\n"
    return Dialect(
        vocabulary,
        131072,
        (_FIRST_WORD, first),
        marks,
        pad="<|endoftext|>",
        turns=turns,
        answer=(asks, f"{asks}<think>\n\n</think>\n\n"),
    )


def stand_in(class_name: str, vocabulary: int, *, pads_with: int | None = None) -> Any:
    """A tokenizer of transformers for a text encoder of `class_name`, made from no file.

    `pads_with` is the id of the padding where that is not the dialect's own.
    """
    dialect = dialect_of(class_name, vocabulary)
    if pads_with is not None:
        dialect = replace(dialect, marks={**dialect.marks, "<pad>": pads_with}, pad="<pad>")
    return _class()(dialect)


@cache
def _class() -> Any:
    """Made late: transformers takes seconds to import."""
    from transformers import AddedToken, PreTrainedTokenizer

    class StandInTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
        """Words by their hash; everything else is the library's."""

        model_input_names = ("input_ids", "attention_mask")

        def __init__(self, dialect: Dialect) -> None:
            self.dialect = dialect
            marks = {
                at: AddedToken(name, special=True, normalized=False)
                for name, at in dialect.marks.items()
            }
            super().__init__(
                added_tokens_decoder=marks,
                bos_token=dialect.begin,
                eos_token=dialect.end,
                pad_token=dialect.pad,
                model_max_length=dialect.length,
                padding_side="left" if dialect.pads_left else "right",
            )

        @property
        def vocab_size(self) -> int:
            return self.dialect.vocabulary

        def get_vocab(self) -> dict[str, int]:
            named = set(self.dialect.marks.values())
            words = {f"#{at}": at for at in range(self.dialect.vocabulary) if at not in named}
            words.update(self.added_tokens_encoder)
            return words

        def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
            del kwargs
            return _WORDS.findall(text.lower() if self.dialect.lower else text)

        def _convert_token_to_id(self, token: str) -> int:
            first, last = self.dialect.words
            digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
            return first + int.from_bytes(digest[:8], "little") % (last - first)

        def _convert_id_to_token(self, index: int) -> str:
            return f"#{index}"

        def build_inputs_with_special_tokens(
            self, token_ids_0: list[int], token_ids_1: list[int] | None = None
        ) -> list[int]:
            begin = [] if self.dialect.begin is None else [self.dialect.marks[self.dialect.begin]]
            end = [] if self.dialect.end is None else [self.dialect.marks[self.dialect.end]]
            return [*begin, *token_ids_0, *(token_ids_1 or ()), *end]

        def apply_chat_template(
            self,
            conversation: Sequence[Any],
            *,
            tokenize: bool = True,
            add_generation_prompt: bool = False,
            enable_thinking: bool = True,
            return_dict: bool = True,
            **kwargs: Any,
        ) -> Any:
            many = bool(conversation) and not isinstance(conversation[0], Mapping)
            asks = self.dialect.answer[not enable_thinking] if add_generation_prompt else ""
            texts = [
                "".join(map(self._turn, one)) + asks
                for one in (conversation if many else [conversation])
            ]
            if not tokenize:
                return texts if many else texts[0]
            encoded = self(texts if many else texts[0], **kwargs)
            return encoded if return_dict else encoded["input_ids"]

        def _turn(self, message: Mapping[str, Any]) -> str:
            content = message["content"]
            if not isinstance(content, str):
                content = "".join(each.get("text", "") for each in content)
            before, after = self.dialect.turns.get(message["role"], ("", ""))
            return f"{before}{content}{after}"

        def save_vocabulary(
            self, save_directory: str, filename_prefix: str | None = None
        ) -> tuple[str, ...]:
            del save_directory, filename_prefix
            return ()

    return StandInTokenizer


def __getattr__(name: str) -> Any:
    """The class by its name, as diffusers asks for it where a pipeline was saved with one."""
    if name == STAND_IN:
        return _class()
    raise AttributeError(f"module `{__name__}` has no `{name}`")
