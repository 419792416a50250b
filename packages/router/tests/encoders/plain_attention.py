"""Attention of packed prompts by plain operations, with the arguments of torch's kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from prefill_router.encoders import packing


@contextmanager
def plain_kernel() -> Iterator[None]:
    """Encoders that are loaded here are packed on the processor, with a plain kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
        kernel = packing.torch_kernel()
        patch.setattr(packing, "find_kernel", lambda _device, _dtype: ("plain", kernel))
        yield


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Any:
    """The attention of each token; with `return_aux` also the logarithms of its scores' sums."""
    assert cu_seq_q.dtype == torch.int32
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert max_q == max_k >= int(cu_seq_q.diff().max())
    assert enable_gqa or query.shape[1] == key.shape[1]
    shared = query.shape[1] // key.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    outputs, sums = [], []
    for first, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        keys, values = (x[first:end].repeat_interleave(shared, 1) for x in (key, value))
        scores = torch.einsum("qhw,khw->hqk", query[first:end], keys) * factor
        scores = scores.masked_fill(hidden(end - first, window_size), -torch.inf)
        sums.append(scores.logsumexp(-1))
        outputs.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1), values))
    return torch.cat(outputs) if return_aux is None else (torch.cat(outputs), torch.cat(sums, 1))


@torch.library.custom_op("prefill_router_tests::attend", mutates_args={})
def operator(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, before: int, after: int
) -> Tensor:
    """One operation for a compiler, as the kernel is."""
    places, window = (starts, starts, longest, longest), (before, after)
    output: Tensor = varlen_attn(query, key, value, *places, window_size=window, enable_gqa=True)
    return output


@operator.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape)


def hidden(count: int, window: tuple[int, int]) -> Tensor:
    """Which keys a token doesn't see, [query, key]."""
    before = torch.arange(count)[:, None] - torch.arange(count)
    past, later = (count if limit < 0 else limit for limit in window)
    return (before > past) | (-before > later)
