"""A network of Llama's architecture, with weights drawn from a seed."""

import math
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prefill_router.minipool.training.profiles import Profile
from prefill_router.minipool.training.vocabulary import END, LONGEST, PAD

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
