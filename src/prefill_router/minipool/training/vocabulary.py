"""The tokenizer that all models of the pool share.

Its tokens are bytes, so that any text has some, and the words of the tasks' wordings. Digits and
the letters of made-up words stay apart, since they are what the tasks are about.
"""

import re
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import PreTrainedTokenizerFast

from prefill_router.minipool.tasks import FAMILIES

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, END)
LONGEST = 1024
"""Tokens that a model reads at most."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] or [] -%}{{- part['text'] or '' -}}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|end|>' if message['role'] == 'assistant' else '' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
_PIECES = r"\p{N}| ?\p{L}+| |[^\p{N}\p{L} ]+"
_FIELD = re.compile(r"\{\w+\}")
_WORD = re.compile(r" ?[A-Za-z]{2,}")


def make_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` with its chat template."""
    tokens = [*SPECIAL, *_byte_tokens(), *_words()]
    core = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], ignore_merges=True))
    core.pre_tokenizer = Sequence(
        [Split(Regex(_PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = ByteLevelDecoder()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made_of: Any = PreTrainedTokenizerFast
    tokenizer = made_of(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _byte_tokens() -> list[str]:
    return sorted(ByteLevel.alphabet())


def _words() -> list[str]:
    """The words of all wordings, with the space before them, as the byte alphabet writes it."""
    found = set()
    for family in FAMILIES.values():
        for wording in family.wordings:
            for text in _FIELD.split(wording):
                found.update(_WORD.findall(text))
        for word in family.words:
            found.update((word, f" {word}"))
    return sorted(word.replace(" ", "Ġ") for word in found)
