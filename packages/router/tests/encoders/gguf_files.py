"""Small GGUF files, written from random networks as llama.cpp's converter lays them out."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as tf
from numpy.typing import NDArray
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from packages.router.tests.encoders.families import CHAT, COMMON, build, save_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")
_SPECIAL = 8
_TAKEN_FOR_GRANTED: dict[str, Any] = {
    "qwen3": lambda: tf.Qwen3Config(
        **COMMON, num_key_value_heads=2, head_dim=128, num_hidden_layers=4
    ),
    "gemma3": lambda: tf.Gemma3TextConfig(
        **COMMON, num_key_value_heads=2, head_dim=8, sliding_window=8, num_hidden_layers=7
    ),
}
"""Networks with the sizes that `transformers` doesn't look for in files of these architectures:
Qwen 3's heads are 128 wide, and every sixth block of a Gemma 3 looks at the whole prompt."""


def write_gguf(
    family: str,
    file: Path,
    *,
    quantisation: str = "F32",
    architecture: str | None = None,
    config: Any = None,
) -> torch.nn.Module:
    """Write a random network of a family; gives the network.

    Args:
        family: One of `ARCHITECTURES`.
        file: The file.
        quantisation: The type of the matrices whose rows such blocks fit into.
        named: What the file calls its architecture; the family by default.
        config: The network's configuration, where it isn't the family's own.
    """
    file.parent.mkdir(exist_ok=True)
    sizes = _TAKEN_FOR_GRANTED.get(family)
    network: Any = build(family, config or (sizes and sizes()))
    config = network.config
    writer = gguf.GGUFWriter(file, architecture or family)
    writer.add_name("a random network")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if hasattr(config, "head_dim"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    _add_positions(writer, config)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, file.parent / "tokenizer", config.vocab_size)
    _add_tensors(writer, network, family, gguf.GGMLQuantizationType[quantisation])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return network


def _add_positions(writer: gguf.GGUFWriter, config: Any) -> None:
    """The rotation of positions: Llama 3's frequencies in a table, other scalings by their name."""
    positions = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(float(positions["rope_theta"]))
    if positions["rope_type"] == "llama3":
        frequencies = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0].numpy()
        width = 2 * len(frequencies)
        plain = positions["rope_theta"] ** (-np.arange(0, width, 2) / width)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).astype(np.float32))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)  # the table is used all the same
    elif positions["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(positions["rope_type"]))
        writer.add_rope_scaling_factor(positions["factor"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    save_tokenizer(folder, chat=True)
    vocabulary = tf.AutoTokenizer.from_pretrained(folder).get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens += ["ab", *(f"[unused{i}]" for i in range(size - len(tokens) - 1))]
    kinds = [gguf.TokenType.CONTROL] * _SPECIAL + [gguf.TokenType.NORMAL] * (size - _SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_chat_template(CHAT)


def _add_tensors(
    writer: gguf.GGUFWriter, network: Any, family: str, kind: gguf.GGMLQuantizationType
) -> None:
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, network.config.num_hidden_layers)
    for key, tensor in network.state_dict().items():
        values = _laid_out(key, tensor.float().numpy(), family, network.config)
        name = names.get_name(f"model.{key}", try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        rows = gguf.GGML_QUANT_SIZES[kind][0]
        if values.ndim == 2 and values.shape[1] % rows == 0:
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)


def _laid_out(key: str, values: NDArray[np.float32], family: str, config: Any) -> Any:
    """A weight as the file has it: Llama's rotated halves interleave, Gemma's norms are 1 + w."""
    if family == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
        is_query = key.endswith("q_proj.weight")
        heads = config.num_attention_heads if is_query else config.num_key_value_heads
        halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if family == "gemma3" and key.endswith("norm.weight"):
        return values + 1
    return values
