"""A network of Llama's architecture, with weights from a seed, and the tokenizer that all share.

The tokenizer's tokens are bytes, so that any text has some, and the words of the tasks' wordings.
Digits and the letters of made-up words stay apart, since they are what the tasks are about.
"""

import math
import re
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prefill_router.minipool.tasks import FAMILIES
from prefill_router.minipool.training.profiles import Profile

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
    tokens = [*SPECIAL, *_byte_tokens(), *_wording_words()]
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


def _wording_words() -> list[str]:
    """The words of all wordings, with the space before them, as the byte alphabet writes it."""
    found = set()
    for family in FAMILIES.values():
        for wording in family.wordings:
            for text in _FIELD.split(wording):
                found.update(_WORD.findall(text))
        for word in family.words:
            found.update((word, f" {word}"))
    return sorted(word.replace(" ", "Ġ") for word in found)


_ROPE_BASE = 1000.0  # prompts are short


def make_network(profile: Profile, tokenizer: Any) -> LlamaForCausalLM:
    """The untrained network; the same for the same seed, whatever ran before."""
    pad, end = tokenizer.convert_tokens_to_ids([PAD, END])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=profile.hidden,
        num_hidden_layers=profile.layers,
        num_attention_heads=profile.heads,
        num_key_value_heads=profile.heads,
        intermediate_size=profile.inner,
        tie_word_embeddings=True,
        max_position_embeddings=LONGEST,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=end,
    )
    network = LlamaForCausalLM(config)
    _draw_weights(network, profile, torch.Generator().manual_seed(profile.seed))
    return network


@torch.no_grad()
def _draw_weights(network: LlamaForCausalLM, profile: Profile, generator: torch.Generator) -> None:
    """Normal with a variance of one over the inputs, and less where blocks add to the stream."""
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            inputs = profile.hidden if "embed" in name else parameter.shape[1]
            spread = inputs**-0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                spread /= math.sqrt(2 * profile.layers)
            parameter.normal_(0, spread, generator=generator)
