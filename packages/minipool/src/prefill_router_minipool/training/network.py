"""The models of the pool: the skills of each, its network (Llama's architecture), the tokenizer.

The models' skills overlap in part. A skill's weight is the relative frequency of a family, and of
each level in it, in training. The initial weights come from a seed. The tokenizer's tokens are
bytes, so that any text can be encoded, and the words in the tasks' wordings. Digits and the letters
of made-up words are single tokens, since the tasks are about them.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prefill_router_minipool.tasks import FAMILIES

Shares = tuple[float, float, float, float, float]
"""The relative frequency of each of the five levels in training."""

NUMBERS = ("addition", "modulo", "comparing", "numerals", "dates")
LETTERS = ("sorting", "reversing", "counting", "brackets", "cipher")
_EVEN: Shares = (1, 1, 1, 1, 1)
_EASIEST: Shares = (3, 1, 0, 0, 0)
_EASIER: Shares = (2, 2, 1, 0, 0)
_HARDER: Shares = (0, 0, 1, 1, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's shape, skills and training.

    Attributes:
        name: Its name in the pool.
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Attention heads.
        inner: Width inside the MLPs.
        skills: The frequency of each level, by family; other families aren't trained.
        steps: Optimiser steps.
        batch: Examples in one step.
        seed: The seed of the initial weights and of the examples.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    inner: int
    skills: Mapping[str, Shares]
    steps: int
    batch: int = 64
    seed: int = 0


def _weigh_families(
    families: Iterable[str], shares: Shares, *, times: float = 1
) -> dict[str, Shares]:
    a, b, c, d, e = shares
    return dict.fromkeys(families, (times * a, times * b, times * c, times * d, times * e))


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="sprout",
            hidden=64,
            layers=2,
            heads=4,
            inner=128,
            skills=_weigh_families((*NUMBERS, *LETTERS), _EASIEST),
            steps=3000,
        ),
        Profile(
            name="abacus",
            hidden=96,
            layers=3,
            heads=4,
            inner=256,
            skills=_weigh_families(("addition",), _EVEN, times=3)
            | _weigh_families(("modulo", "counting"), _EVEN)
            | _weigh_families(("comparing",), _HARDER)
            | _weigh_families(("numerals",), _EASIER, times=0.5),
            steps=4000,
        ),
        Profile(
            name="scribe",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_weigh_families(("sorting", "reversing", "brackets", "cipher"), _HARDER)
            | _weigh_families(("counting", "comparing"), _EASIER, times=0.5),
            steps=1600,
        ),
        Profile(
            name="almanac",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_weigh_families(("dates",), _EVEN, times=3)
            | _weigh_families(("modulo", "counting"), _EVEN)
            | _weigh_families(("numerals",), _HARDER)
            | _weigh_families(("sorting", "addition"), _EASIER, times=0.5),
            steps=1800,
        ),
        Profile(
            name="atlas",
            hidden=192,
            layers=3,
            heads=6,
            inner=512,
            skills=_weigh_families((*NUMBERS, *LETTERS), _EASIER),
            steps=2500,
        ),
        Profile(
            name="reader",
            hidden=128,
            layers=4,
            heads=4,
            inner=384,
            skills=_weigh_families((*NUMBERS, *LETTERS), _EVEN)
            | _weigh_families(("addition", "dates"), _EVEN, times=2),
            steps=4000,
        ),
    )
}


PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, END)
LONGEST = 1024
"""The longest context of a model, in tokens."""

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
    tokens = [*SPECIAL, *sorted(ByteLevel.alphabet()), *_collect_words()]
    core = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], ignore_merges=True))
    core.pre_tokenizer = Sequence(
        [Split(Regex(_PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = ByteLevelDecoder()
    core.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer_class: Any = PreTrainedTokenizerFast
    tokenizer = tokenizer_class(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _collect_words() -> list[str]:
    """The words of all wordings, with a leading space as the byte alphabet writes it."""
    words = set()
    for family in FAMILIES.values():
        for wording in family.wordings:
            for text in _FIELD.split(wording):
                words.update(_WORD.findall(text))
        for word in family.words:
            words.update((word, f" {word}"))
    return sorted(word.replace(" ", "Ġ") for word in words)


_ROPE_BASE = 1000.0  # prompts are short


def make_network(profile: Profile, tokenizer: Any) -> LlamaForCausalLM:
    """The untrained network; it depends on the seed alone."""
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
    """Draw normal weights of variance 1 / inputs, or less in matrices that feed the residual."""
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            inputs = profile.hidden if "embed" in name else parameter.shape[1]
            spread = inputs**-0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                spread /= math.sqrt(2 * profile.layers)
            parameter.normal_(0, spread, generator=generator)
