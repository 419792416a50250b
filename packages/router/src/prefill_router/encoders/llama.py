"""Blocks of Llama-shaped networks (Llama, Qwen 2, Qwen 3) in fewer operations, the same states.

In bfloat16 on a processor a third of the time of a forward pass goes into what lies between the
matrix products. oneDNN does most of that within them. It applies the activation, the gate's product
and the residual to each result before it is rounded. The weights are in the order in which it reads
them. The query, key and value are one product, and their heads are rotated together.

A block is replaced only if its class is known, its attention is over all earlier tokens, and its
output on a few made-up tokens is that of the original. Blocks that differ in nothing but their
weights are compared once. Any other block runs as it is. The replacement has the same interface, so
hooks and caches of keys and values work as before.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

_MODELS = "transformers.models"
_BLOCK_CLASSES = frozenset(
    {
        f"{_MODELS}.llama.modeling_llama.LlamaDecoderLayer",
        f"{_MODELS}.qwen2.modeling_qwen2.Qwen2DecoderLayer",
        f"{_MODELS}.qwen3.modeling_qwen3.Qwen3DecoderLayer",
    }
)
"""By name, since importing the modules of all of them would take longer than loading one."""
_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight")
_BATCH = 512
"""The number of tokens for which the order of the weights is chosen; any number can be read."""
_QUERIES = 64
"""The number of tokens whose attention is computed at a time, each with all tokens before it."""
_PROBE_TOKENS = 12
_PROBE_SCALE = 1 / 64
"""Small inputs, so that the output is mostly what the block adds: a norm undoes the scale."""
_TOLERANCE = 0.05


def fuse_blocks(network: nn.Module, blocks: nn.ModuleList) -> None:
    """Replace the blocks that can be computed in fewer operations; the others stay.

    The weights of a replaced block are released as soon as nothing else refers to it.

    Args:
        network: A network of `transformers`, on its device.
        blocks: Its blocks, in order.
    """
    if not _is_supported(network):
        return
    results: dict[Hashable, bool] = {}
    for number, block in enumerate(blocks):
        replacement = _fuse_block(block)
        if replacement is None:
            continue
        settings = _list_settings(block)
        if settings not in results:
            results[settings] = _is_same(replacement, block, cast(Any, network).rotary_emb)
        if results[settings]:
            blocks[number] = replacement


def _list_settings(block: nn.Module) -> Hashable:
    """What a block computes, but for the values of its weights and its number.

    These are its modules, their settings, and which weights there are, such as a bias.
    """
    settings = (
        (name, type(module), key, value)
        for name, module in block.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, int | float | str) and key != "layer_idx"
    )
    return (*settings, *((name, weight.shape) for name, weight in block.named_parameters()))


def _is_supported(network: Any) -> bool:
    """Whether the network is in bfloat16 on a processor for which torch has the operators."""
    kinds = {(weight.device.type, weight.dtype) for weight in network.parameters()}
    return (
        kinds == {("cpu", torch.bfloat16)}
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and getattr(network.config, "_attn_implementation", None) == "sdpa"
    )


def _fuse_block(block: Any) -> "FusedBlock | None":
    kind = type(block)
    if f"{kind.__module__}.{kind.__qualname__}" not in _BLOCK_CLASSES or not _is_plain(block):
        return None
    try:
        with torch.inference_mode():
            return FusedBlock(block)
    except RuntimeError:  # the operators are private, and not for every processor
        return None


@torch.inference_mode()
def _is_same(replacement: nn.Module, block: nn.Module, rotary: nn.Module) -> bool:
    """Whether the replacement computes what the block does."""
    try:
        return _replacement_error(replacement, block, rotary) < _TOLERANCE
    except RuntimeError:  # as above
        return False


def _is_plain(block: Any) -> bool:
    """Whether the block does what is computed here: full attention, SiLU, unquantised weights."""
    attention, mlp = block.self_attn, block.mlp
    products = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    products += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return (
        all(type(product) is nn.Linear for product in products)
        and attention.config.hidden_act == "silu"
        and getattr(attention, "sliding_window", None) is None
    )


def _replacement_error(replacement: nn.Module, block: nn.Module, rotary: nn.Module) -> float:
    """The error of the replacement on made-up tokens, relative to what the block adds."""
    size = cast(Any, block).input_layernorm.weight.shape[0]
    random = torch.Generator().manual_seed(0)
    states = torch.randn(1, _PROBE_TOKENS, size, generator=random) * _PROBE_SCALE
    states = states.bfloat16()
    turns = rotary(states, torch.arange(_PROBE_TOKENS)[None])
    expected, actual = (
        module(states, position_embeddings=turns).float() for module in (block, replacement)
    )
    return float((actual - expected).norm() / (expected - states).norm())


@final
@dataclass(frozen=True, eq=False)
class _Product:
    """A linear map whose weights are in the order in which oneDNN reads them.

    Attributes:
        weight: The reordered weights.
        bias: [output], if there is one.
    """

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *maps: nn.Linear) -> "_Product":
        """One map with the outputs of all, in order; all or none have a bias."""
        weights: list[Tensor] = [linear.weight for linear in maps]
        biases: list[Tensor] = [linear.bias for linear in maps if linear.bias is not None]
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights), _BATCH)
        return cls(packed, torch.cat(biases) if biases else None)

    def __deepcopy__(self, memo: object) -> "_Product":
        """Itself: copies of a network share its weights."""
        return self

    def __call__(self, states: Tensor, activation: str = "none") -> Tensor:
        """The map of states [..., input], and an activation of it."""
        run: Any = torch.ops.mkldnn._linear_pointwise
        output: Tensor = run(states, self.weight, self.bias, activation, [], "")
        return output

    def combine(self, states: Tensor, operation: str, other: Tensor) -> Tensor:
        """The map of states [..., input], added to or multiplied by `other` [..., output]."""
        run: Any = torch.ops.mkldnn._linear_pointwise.binary
        output: Tensor = run(states, other, self.weight, self.bias, operation)
        return output


@final
class FusedBlock(nn.Module):
    """A block of self-attention and a gated feed-forward network, each after an RMS norm.

    Source: Touvron et al., Llama (2023); Yang et al., Qwen3 (2025), for norms of queries and keys.

    Attributes:
        is_causal: Each token sees only those before it.
    """

    is_causal = True

    def __init__(self, block: Any) -> None:
        """Take over the weights of a block of `transformers`."""
        super().__init__()
        attention, mlp = block.self_attn, block.mlp
        self._number: int = attention.layer_idx
        self._width: int = attention.head_dim
        self._before = block.input_layernorm
        self._between = block.post_attention_layernorm
        self._qkv = _Product.of(attention.q_proj, attention.k_proj, attention.v_proj)
        self._key_heads: int = attention.k_proj.out_features // self._width
        self._out = _Product.of(attention.o_proj)
        self._gate, self._up = _Product.of(mlp.gate_proj), _Product.of(mlp.up_proj)
        self._down = _Product.of(mlp.down_proj)
        self._head_norms = _head_norms(attention, self._key_heads)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        cache: Any = None,
    ) -> Tensor:
        """The states after the block, [query, token, hidden].

        Args:
            hidden_states: The states before it, of the same shape.
            attention_mask: Not needed: padding is on the right, where no token sees it.
            position_ids: Not needed: they are in `position_embeddings`.
            past_key_values: The cache of keys and values of earlier tokens, which is extended.
            use_cache: Not needed: the cache is used if there is one.
            position_embeddings: Cosines and sines of the rotation, [1, token, head width].
            cache: The name of `past_key_values` since transformers 5.24.
        """
        del attention_mask, position_ids, use_cache
        normed = _norm_states(hidden_states, self._before)
        query, key, value = self._heads(normed, *position_embeddings)
        key_value_cache = past_key_values if cache is None else cache
        if key_value_cache is not None:
            key, value = key_value_cache.update(key, value, self._number)
        attended = _causal_attention(query, key, value)
        attended = attended.transpose(1, 2).reshape(*hidden_states.shape[:2], -1)
        states = self._out.combine(attended, "add", hidden_states)
        normed = _norm_states(states, self._between)
        gated = self._up.combine(normed, "mul", self._gate(normed, "swish"))
        return self._down.combine(gated, "add", states)

    def _heads(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """The rotated queries and keys, and the values, each [query, head, token, head width]."""
        heads = self._qkv(states).view(*states.shape[:2], -1, self._width)
        queries_and_keys, values = heads[:, :, : -self._key_heads], heads[:, :, -self._key_heads :]
        if self._head_norms is not None:
            weights, epsilon = self._head_norms
            queries_and_keys = functional.rms_norm(
                queries_and_keys, (self._width,), None, epsilon
            ).mul_(weights)
        queries_and_keys = _rotate_heads(queries_and_keys, cos[:, :, None], sin[:, :, None])
        queries, keys = (
            queries_and_keys[:, :, : -self._key_heads],
            queries_and_keys[:, :, -self._key_heads :],
        )
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


def _head_norms(attention: Any, key_heads: int) -> tuple[Tensor, float] | None:
    """The weights of the norms of each head of queries and keys, [head, width]; None without."""
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    query_heads = key_heads * attention.num_key_value_groups
    weights = [query.weight.expand(query_heads, -1), key.weight.expand(key_heads, -1)]
    return torch.cat(weights), float(query.variance_epsilon)


def _norm_states(states: Tensor, norm: Any) -> Tensor:
    """The RMS norm; with the weights as an argument torch takes twice as long."""
    weight: Tensor = norm.weight
    return functional.rms_norm(states, weight.shape, None, norm.variance_epsilon).mul_(weight)


def _rotate_heads(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each head's halves rotated as pairs, by angles that are the same in both halves."""
    half = heads.shape[-1] // 2
    pairs = heads * cos
    pairs[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    pairs[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return pairs


@cache
def _make_causal_mask() -> Tensor:
    """What is added to the scores of a block with its own keys, to hide later tokens.

    It is made at its first use: an operation starts torch's threads, which don't survive a fork.
    """
    return torch.full((_QUERIES, _QUERIES), -torch.inf, dtype=torch.bfloat16).triu(1)


def _causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of each token to itself and those before it, [query, head, token, head width].

    Blocks of queries are multiplied with the keys up to their end, for all heads that share keys
    together, which takes half the time of torch's own operator. The scores are rounded to the type
    of the queries and keys; with large scores too (of biased keys), it is the rounding of these
    that determines the error.

    Args:
        query: The queries of the last tokens, of the same shape.
        key: The keys of all tokens, [query, key head, token, head width].
        value: Their values, of the same shape.
    """
    batch, heads, length, width = query.shape
    total = key.shape[2]
    shared = (batch * key.shape[1], heads // key.shape[1])
    queries = (query * width**-0.5).reshape(*shared, length, width)
    keys = key.reshape(shared[0], total, width).transpose(1, 2).contiguous()
    values = value.reshape(shared[0], total, width)
    output = query.new_empty(batch, length, heads, width).transpose(1, 2)
    for start in range(0, length, _QUERIES):
        block = queries[:, :, start : start + _QUERIES]
        count = block.shape[2]
        first = total - length + start
        end = first + count
        scores = torch.bmm(block.flatten(1, 2), keys[:, :, :end])
        scores.view(*shared, count, end)[..., first:] += _make_causal_mask()[:count, :count]
        rows = torch.bmm(scores.softmax(-1), values[:, :end])
        output[:, :, start : start + count] = rows.view(batch, heads, count, width)
    return output
