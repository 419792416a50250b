"""Prompts packed into one row of tokens without padding, for networks that keep prompts apart.

Attention by the kernels of variable lengths sees each prompt by itself, and positions begin again
at each prompt. Recurrent and linear blocks would carry one prompt into the next, so only families
of pure attention are packed: those for which the tests compare every layer with passes one by one.
Any other family is padded.

A kernel is an ordinary function here. The tests put a plain one in its place, so that all the rest
runs on a processor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import accumulate
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

from prefill_router.activations import Pooling
from prefill_router.encoders.devices import send
from prefill_router.encoders.provenance import counted_padding
from prefill_router.errors import ConfigError

PACKED_FAMILIES = frozenset(
    {
        "bert",
        "gemma3_text",
        "gpt2",
        "gpt_oss",
        "llama",
        "mistral",
        "modernbert",
        "olmo2",
        "opt",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "roberta",
    }
)
"""Families (`config.model_type`) whose packed states the tests compare with passes one by one."""
PACKED_BATCH_TOKENS = 32_768
"""Tokens of a packed batch by default; a GPU is busy with fewer, and more only need memory."""
SAME_AT_ANY_LENGTH = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary position embeddings that don't depend on the length of a prompt."""
_ODD = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""What networks and kernels raise where they can't be run packed."""
PIECE = 64
"""Tokens that are summed one after another; sums of a prompt's pieces are added then."""
_WIDEST_HEAD, _HEAD_STEP = 256, 8
_HALVES = (torch.bfloat16, torch.float16)


@runtime_checkable
class Kernel(Protocol):
    """Attention within each prompt of a row."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        starts: Tensor,
        longest: int,
        *,
        scale: float | None,
        window: tuple[int, int],
        sinks: Tensor | None,
    ) -> Tensor:
        """What each token sees, [token, head, width].

        Args:
            query: The queries, [token, head, width].
            key: The keys, [token, key head, width]; heads are a multiple of key heads.
            value: The values, of the shape of the keys.
            starts: The first token of each prompt, and the number of all, [prompt + 1], in int32.
            longest: At least the number of tokens of the longest prompt.
            scale: The factor of the scores; by default 1 over the root of the width.
            window: How many tokens before and after its own a token sees; -1 for all.
            sinks: A score of each head that takes its share and shows nothing, [head].
        """
        ...


def torch_kernel() -> Kernel | None:
    """The kernel that comes with torch 2.10 or newer; None with an older one."""
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return None
    run: Any = varlen.varlen_attn
    takes_groups = "enable_gqa" in signature(run).parameters

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        starts: Tensor,
        longest: int,
        *,
        scale: float | None,
        window: tuple[int, int],
        sinks: Tensor | None,
    ) -> Tensor:
        options: dict[str, Any] = {"scale": scale, "window_size": window}
        if takes_groups:
            options["enable_gqa"] = True
        else:
            key, value = (_repeat_heads(rows, query.shape[1]) for rows in (key, value))
        if sinks is not None:
            options["return_aux"] = varlen.AuxRequest(lse=True)
        row = run(query, key, value, starts, starts, longest, longest, **options)
        return row if sinks is None else _with_sinks(row[0], row[1], sinks)

    return attend


def flash_kernel() -> Kernel | None:
    """The kernel of the package flash-attn; None where it isn't installed."""
    try:
        from flash_attn import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
            flash_attn_varlen_func,
        )
    except ImportError:
        return None

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        starts: Tensor,
        longest: int,
        *,
        scale: float | None,
        window: tuple[int, int],
        sinks: Tensor | None,
    ) -> Tensor:
        row: Any = flash_attn_varlen_func(
            *(query, key, value, starts, starts, longest, longest),
            softmax_scale=scale,
            causal=window[1] == 0,
            window_size=window,
            return_attn_probs=sinks is not None,
        )
        return row if sinks is None else _with_sinks(row[0], row[1], sinks)

    return attend


_KERNELS: Mapping[str, Callable[[], Kernel | None]] = {
    "torch": torch_kernel,
    "flash-attn": flash_kernel,
}
"""What finds a kernel, by its name, the first choice first."""


def find_kernel(device: torch.device, dtype: torch.dtype) -> tuple[str, Kernel] | None:
    """The name of a kernel for this device and type, and the kernel; None where there is none."""
    if device.type != "cuda" or dtype not in _HALVES:
        return None
    for name, find in _KERNELS.items():
        kernel = find()
        if kernel is not None:
            return name, kernel
    return None


def _repeat_heads(rows: Tensor, heads: int) -> Tensor:
    """Each key head once for every head that shares it."""
    return rows.repeat_interleave(heads // rows.shape[1], dim=1)


def _with_sinks(row: Tensor, sums: Tensor, sinks: Tensor) -> Tensor:
    """Attention without sinks, as it is with them.

    A sink adds exp(sink) to the sum that all shares are divided by, of which `sums` is the
    logarithm without it, [head, token].
    """
    share = torch.sigmoid(sums - sinks.float()[:, None])
    return (row * share.T[..., None]).to(row.dtype)


def _attend(
    kernel: Kernel,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention of a block of `transformers`, [1, head, token, width] to [1, token, head, ...].

    The names are those of its attention functions.
    """
    del attention_mask, others
    causal = bool(module.is_causal) if is_causal is None else is_causal
    before = -1 if sliding_window is None else sliding_window - 1
    heads = [rows[0].transpose(0, 1) for rows in (query, key, value)]
    row = kernel(
        heads[0],
        heads[1],
        heads[2],
        cu_seq_lens_q,
        max_length_q,
        scale=scaling,
        window=(before, 0 if causal else before),
        sinks=s_aux,
    )
    return row[None], None


def is_packable(network: nn.Module) -> bool:
    """Whether the network is of a family that is packed, with settings that allow it."""
    config: Any = network.config
    heads = getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return (
        config.model_type in PACKED_FAMILIES
        and type(network).__module__.startswith("transformers.")
        and set(rotary_kinds(getattr(config, "rope_parameters", None))) <= SAME_AT_ANY_LENGTH
        and getattr(config, "attn_logit_softcapping", None) is None
        and width <= _WIDEST_HEAD
        and width % _HEAD_STEP == 0
    )


def rotary_kinds(parameters: Any) -> Iterator[str]:
    """The kinds that a configuration names, for all layers or for each kind of layer."""
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            if name in ("rope_type", "type"):
                yield str(value)
            yield from rotary_kinds(value)


@final
@dataclass(frozen=True)
class Packing:
    """How a network is run packed.

    Attributes:
        kernel: The name of the kernel.
        padding: The padding token, where positions begin after its number and leave it out, as
            RoBERTa's do; None where they begin at 0.
    """

    kernel: str
    padding: int | None


def use_packing(network: Any, device: torch.device, dtype: torch.dtype) -> Packing | None:
    """Let the network compute attention packed, if its family and the device allow that.

    Some tokens are run once. Where the installed versions of torch and `transformers` can't do it,
    the network is left as it was.

    Returns:
        How it is run; None where prompts must be padded.
    """
    choice = find_kernel(device, dtype) if is_packable(network) else None
    if choice is None:
        return None
    name, kernel = choice
    before = network.config._attn_implementation
    packing = Packing(name, counted_padding(network.config))
    AttentionInterface.register(f"packed-{name}", partial(_attend, kernel))
    try:
        network.set_attn_implementation(f"packed-{name}")
        batch = pack([np.ones(n, dtype=np.int32) for n in (3, 2)], device, packing.padding)
        with torch.inference_mode():
            network(**batch.inputs(network))
    except _ODD:
        network.set_attn_implementation(before)
        return None
    return packing


@final
@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Prompts one after another in one row.

    Attributes:
        ids: Token ids, [1, token].
        positions: The position of each token in its prompt, [1, token].
        starts: The first token of each prompt, and the number of all, [prompt + 1], in int32.
        pieces: The number of tokens of each piece of at most 64, [piece].
        piece_counts: The number of pieces of each prompt, [prompt].
        longest: At least the number of tokens of the longest prompt.
    """

    ids: Tensor
    positions: Tensor
    starts: Tensor
    pieces: Tensor
    piece_counts: Tensor
    longest: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in order."""
        return self.ids, self.positions, self.starts, self.pieces, self.piece_counts

    def copy_to(self, device: torch.device) -> "PackedBatch":
        """A copy with memory of its own."""
        ids, positions, starts, pieces, counts = (t.to(device, copy=True) for t in self.tensors)
        return PackedBatch(ids, positions, starts, pieces, counts, self.longest)

    def inputs(self, network: Any) -> dict[str, Any]:
        """The arguments of the network's `forward`."""
        return {
            "input_ids": self.ids,
            "position_ids": self.positions,
            "cu_seq_lens_q": self.starts,
            "max_length_q": self.longest,
            **without_cache(network),
        }

    def pool(self, states: Tensor, pooling: Pooling) -> Tensor:
        """One float32 row per prompt, [prompt, hidden].

        Raises:
            ConfigError: The network's states aren't [1, token, hidden].
        """
        if states.shape[:2] != self.ids.shape or states.ndim != 3:
            raise ConfigError(
                f"a block's states have the shape {tuple(states.shape)} instead of [1, token, "
                "hidden]; this family of networks isn't supported: choose another encoder"
            )
        rows, starts = states[0], self.starts.to(states.device, torch.long)
        firsts, ends = starts[:-1], starts[1:]
        if pooling == "last":
            return rows[ends - 1].float()
        count = (ends - firsts)[:, None]
        if pooling == "mean":
            return self._sums(rows.float()) / count.clamp(min=1)
        # the first state is never added, since taking it off again would leave its rounding
        rest = self._sums(rows.float().index_fill(0, firsts, 0)) / (count - 1).clamp(min=1)
        return torch.where(count > 1, rest, rows[firsts].float())

    def _sums(self, rows: Tensor) -> Tensor:
        """The sum of each prompt's rows, always in the same order."""
        for counts in (self.pieces, self.piece_counts):
            lengths = counts.to(rows.device)
            rows = torch.segment_reduce(rows, "sum", lengths=lengths, axis=0, unsafe=True)
        return rows


def without_cache(network: Any) -> dict[str, Any]:
    """The argument that keeps a network from caching keys and values, where it has one."""
    has_cache = getattr(network.config, "use_cache", None) is not None
    return {"use_cache": False} if has_cache else {}


def pack(
    rows: Sequence[NDArray[np.int32]], device: torch.device, padding: int | None
) -> PackedBatch:
    """A batch of rows of token ids.

    Args:
        rows: The tokens of each prompt.
        device: Where it is read.
        padding: That of the `Packing`.
    """
    counts = [len(row) for row in rows]
    pieces = [_pieces(count) for count in counts]
    values = (
        np.concatenate(rows).astype(np.int64)[None],
        np.concatenate([_positions(row, padding) for row in rows])[None],
        np.array([0, *accumulate(counts)], dtype=np.int32),
        np.concatenate(pieces),
        np.array([len(piece) for piece in pieces], dtype=np.int64),
    )
    ids, positions, starts, sizes, numbers = (
        send(torch.from_numpy(value), device) for value in values
    )
    return PackedBatch(ids, positions, starts, sizes, numbers, max(counts))


def _positions(row: NDArray[np.int32], padding: int | None) -> NDArray[np.int64]:
    """The position of each token of a prompt."""
    if padding is None:
        return np.arange(len(row), dtype=np.int64)
    counted = (row != padding).astype(np.int64)
    positions: NDArray[np.int64] = counted.cumsum() * counted + padding
    return positions


def _pieces(count: int) -> NDArray[np.int64]:
    """The tokens of each piece of a prompt."""
    starts = np.arange(0, count, PIECE, dtype=np.int64)
    return np.minimum(count - starts, PIECE)
