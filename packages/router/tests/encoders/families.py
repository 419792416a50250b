"""Small random networks of each family, saved as encoders, and a plain way to read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from prefill_router.activations import Site

VOCABULARY = 300
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
NEMOTRON = ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"]
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def _qwen3() -> Any:
    return tf.Qwen3Config(**COMMON, **GROUPED, num_hidden_layers=5)


def _qwen3_moe() -> Any:
    return tf.Qwen3MoeConfig(**COMMON, **GROUPED, **MOE, num_hidden_layers=4)


def _qwen3_5() -> Any:
    types = [*HYBRID, *HYBRID[2:]]
    return tf.Qwen3_5TextConfig(
        **COMMON, **GROUPED, **LINEAR, num_hidden_layers=len(types), layer_types=types
    )


def _qwen3_5_moe() -> Any:
    return tf.Qwen3_5MoeTextConfig(
        **COMMON,
        **GROUPED,
        **LINEAR,
        **MOE,
        shared_expert_intermediate_size=16,
        num_hidden_layers=4,
        layer_types=HYBRID,
    )


def _gpt_oss() -> Any:
    return tf.GptOssConfig(
        **COMMON,
        **GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        num_hidden_layers=4,
    )


def _nemotron_h() -> Any:
    return tf.NemotronHConfig(
        **COMMON,
        **GROUPED,
        layers_block_type=NEMOTRON,
        mamba_num_heads=4,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=2,
        chunk_size=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
    )


def _gemma3() -> Any:
    return tf.Gemma3TextConfig(
        **COMMON, **GROUPED, sliding_window=8, sliding_window_pattern=3, num_hidden_layers=5
    )


def _gpt2() -> Any:
    return tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_head=4, n_layer=5, n_positions=256, n_inner=48
    )


def _modernbert() -> Any:
    return tf.ModernBertConfig(
        **COMMON, local_attention=8, global_attn_every_n_layers=3, num_hidden_layers=5
    )


def _deberta(*, conv: int = 0) -> Any:
    return tf.DebertaV2Config(
        **COMMON,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
        num_hidden_layers=4,
        conv_kernel_size=conv,
        conv_act="gelu",
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "gpt_oss": _gpt_oss,
    "nemotron_h": _nemotron_h,
    "llama": lambda: tf.LlamaConfig(**COMMON, num_hidden_layers=4),
    "mistral": lambda: tf.MistralConfig(**COMMON, **GROUPED, sliding_window=8, num_hidden_layers=4),
    "qwen2": lambda: tf.Qwen2Config(**COMMON, num_key_value_heads=2, num_hidden_layers=4),
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "bert": lambda: tf.BertConfig(**COMMON, num_hidden_layers=4),
    "roberta": lambda: tf.RobertaConfig(**{**COMMON, "pad_token_id": 1}, num_hidden_layers=4),
    "modernbert": _modernbert,
    "deberta": _deberta,
    "deberta_conv": lambda: _deberta(conv=3),
    # not in CUT_BY_CONFIG: loaded whole, the later blocks dropped
    "phi3": lambda: tf.Phi3Config(**COMMON, num_key_value_heads=2, num_hidden_layers=4),
    "olmo2": lambda: tf.Olmo2Config(**COMMON, num_hidden_layers=4),
    "opt": lambda: tf.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        num_attention_heads=4,
        ffn_dim=48,
        num_hidden_layers=4,
        max_position_embeddings=256,
    ),
}
WITH_CHAT = {"qwen3", "qwen3_5", "nemotron_h", "gpt_oss", "llama"}


def save_tokenizer(folder: Path, *, chat: bool, brackets: bool = False) -> None:
    """Save a tokenizer of bytes; `brackets` adds a token before and after, as BERT's does."""
    specials = [
        "<pad>",
        "<s>",
        "</s>",
        "<unk>",
        "<|user|>",
        "<|system|>",
        "<|assistant|>",
        "<|end|>",
    ]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if brackets:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    fast = tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=specials[4:],
    )
    fast.chat_template = CHAT if chat else None
    fast.save_pretrained(folder)


def build(family: str, config: Any = None) -> torch.nn.Module:
    """A base network with weights large enough that every block matters."""
    torch.manual_seed(sum(map(ord, family)))
    network = tf.AutoModel.from_config(config or FAMILIES[family]())
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(0, 1.0 if "embed" in name or "wte" in name else 0.15)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return network.eval()


def save(family: str, folder: Path) -> Path:
    """Save a random network of a family with a tokenizer."""
    build(family).save_pretrained(folder)
    save_tokenizer(folder, chat=family in WITH_CHAT, brackets="bert" in family)
    return folder


def read_plainly(
    network: torch.nn.Module, ids: NDArray[np.int32], blocks: torch.nn.ModuleList
) -> dict[Site, NDArray[np.float32]]:
    """Every state of one prompt from a full forward of the whole network, unpadded, in float32.

    The layers up to L - 1 come from the network's own list of hidden states, the last one, which
    that list gives after the final norm, from a hook.
    """
    outputs: list[torch.Tensor] = []
    hook = blocks[-1].register_forward_hook(
        lambda _module, _args, output: outputs.append(
            output if torch.is_tensor(output) else output[0]
        )
    )
    with torch.no_grad():
        row = torch.from_numpy(ids).long()[None]
        states = network(input_ids=row, output_hidden_states=True).hidden_states
    hook.remove()
    layers = [*states[: len(blocks)], outputs[0]]
    return {
        **{Site(i, "last"): h[0, -1].numpy() for i, h in enumerate(layers)},
        **{Site(i, "mean"): h[0].double().mean(0).float().numpy() for i, h in enumerate(layers)},
        **{
            Site(i, "rest"): _without_first(h[0]).double().mean(0).float().numpy()
            for i, h in enumerate(layers)
        },
    }


def _without_first(rows: torch.Tensor) -> torch.Tensor:
    """All rows but the first; a single row stays."""
    return rows[1:] if len(rows) > 1 else rows
