"""all-MiniLM-L6-v2 in torch alone, with the same results as `transformers`, bit for bit.

Importing BERT from `transformers` takes longer than the rest of a decision; the network is six
standard blocks, whose weights come with a package, so it is implemented here. Its modules are named
after the weights.

Source: Devlin et al., BERT (2019); Wang et al., MiniLM (2020).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, final

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from prefill_router.encoders.base import EncoderRequest
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.provenance import (
    TOKENIZER_FILES,
    batch_tokens_on,
    check_files,
    device_of,
    dtype_of,
    last_layer,
    loading_errors,
    provenance_of,
)


@final
class WordPieces:
    """The tokenizer in a folder's `tokenizer.json`, with the interface of `transformers`.

    Args:
        folder: The folder with this file and `tokenizer_config.json`.
    """

    chat_template = None

    def __init__(self, folder: Path) -> None:
        self._pieces = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._pieces.no_truncation()
        self._pieces.no_padding()
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.model_max_length: int = settings["model_max_length"]
        self.pad_token_id: int | None = self._pieces.token_to_id(settings["pad_token"])

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> dict[str, list[list[int]]]:
        """The token ids of each text, not truncated."""
        rows = self._pieces.encode_batch(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [row.ids for row in rows]}


class _Normed(nn.Module):
    """A projection with a residual connection and layer normalisation."""

    def __init__(self, inputs: int, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, found: Tensor, before: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dropout(self.dense(found)) + before)
        return normed


class _Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.width = size // config.num_attention_heads
        self.drop = config.attention_probs_dropout_prob
        self.self = nn.ModuleDict({n: nn.Linear(size, size) for n in ("query", "key", "value")})
        self.output = _Normed(size, config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        heads = (*states.shape[:-1], -1, self.width)
        query, key, value = (
            self.self[name](states).view(heads).transpose(1, 2) for name in self.self
        )
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.drop if self.training else 0.0,
            scale=self.width**-0.5,
        )
        together: Tensor = self.output(found.transpose(1, 2).reshape(states.shape), states)
        return together


class _MiniLMBlock(nn.Module):
    """Self-attention, followed by a feed-forward network."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = nn.ModuleDict(
            {"dense": nn.Linear(config.hidden_size, config.intermediate_size)}
        )
        self.output = _Normed(config.intermediate_size, config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        seen = self.attention(states, mask)
        found: Tensor = self.output(functional.gelu(self.intermediate["dense"](seen)), seen)
        return found


def _embedding(rows: int, size: int) -> nn.Embedding:
    """An uninitialised embedding: random initialisation makes torch import its compiler."""
    return nn.Embedding(rows, size, _weight=torch.empty(rows, size))


class _Embeddings(nn.Module):
    """The sum of token, position and token-type embeddings."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = _embedding(config.vocab_size, size)
        self.position_embeddings = _embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = _embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor) -> Tensor:
        kind = self.token_type_embeddings.weight[0]
        where = self.position_embeddings.weight[: ids.shape[1]]
        found: Tensor = self.dropout(self.LayerNorm(self.word_embeddings(ids) + kind + where))
        return found


@final
class MiniLM(nn.Module):
    """The network, without the pooler.

    Args:
        config: The fields of `config.json`, with the number of blocks to build.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        blocks = [_MiniLMBlock(config) for _ in range(config.num_hidden_layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(blocks)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """The states after the last block: `last_hidden_state` [query, token, hidden]."""
        states = self.embeddings(input_ids)
        mask = None if attention_mask.all() else attention_mask.bool()[:, None, None, :]
        for block in self.blocks:
            states = block(states, mask)
        return SimpleNamespace(last_hidden_state=states)

    @property
    def blocks(self) -> nn.ModuleList:
        """The network's blocks, in order."""
        return cast(nn.ModuleList, self.encoder["layer"])


def load_minilm(request: EncoderRequest) -> HubEncoder:
    """Load the packaged encoder.

    Raises:
        ConfigError: Its files can't be read, or an option is invalid.
        ProvenanceError: It isn't the expected encoder.
    """
    check_files(request)
    folder = Path(request.source)
    device = device_of(request.device)
    dtype = dtype_of(request.dtype, device)
    with loading_errors(request):
        whole = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = SimpleNamespace(**whole | {"use_cache": None})  # it has no cache
        tokenizer = WordPieces(folder)
        files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
        made_by = provenance_of(request, config, tokenizer, files, None, dtype)
        if request.expected is not None:
            request.expected.require(made_by, what=f"the encoder {request.source}")
        last = last_layer(request.layers, config.num_hidden_layers)
        config.num_hidden_layers = max(last, 1)
        network = _network(config, folder / "model.safetensors", dtype).to(device)
    most = request.batch_tokens or batch_tokens_on(device)
    return HubEncoder(made_by, tokenizer, network, network.blocks, last, most)


def _network(config: Any, weights: Path, dtype: torch.dtype) -> MiniLM:
    """The network with the weights that it needs."""
    with torch.device("meta"):  # no random initialisation that is only replaced
        network = MiniLM(config)
    with safe_open(weights, framework="pt") as stored:
        found = {name: stored.get_tensor(name).to(dtype) for name in network.state_dict()}
    network.load_state_dict(found, assign=True)
    return network.eval().requires_grad_(False)
