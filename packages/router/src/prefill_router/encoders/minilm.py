"""all-MiniLM-L6-v2, whose weights come with a package: an encoder that needs no torch.

It runs on the processor, in float32. What was recorded for it is kept. Where a provenance says
`bfloat16`, as it does by default on processors that compute in it, states are those of float32.
States in bfloat16 differ from these by its rounding, 0.4 to 1.2 % of their norm.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from tokenizers import Tokenizer

from prefill_router.activations import Pooling, Provenance, Site
from prefill_router.encoders.base import Batch, Encoder, NetworkEncoder
from prefill_router.encoders.batching import batches
from prefill_router.encoders.encoder_names import EncoderRequest
from prefill_router.encoders.minilm_network import MiniLMNetwork
from prefill_router.encoders.parallel import ParallelEncoder
from prefill_router.encoders.provenance import (
    CPU_BATCH_TOKENS,
    TOKENIZER_FILES,
    check_device,
    check_dtype,
    check_files,
    last_layer,
    loading_errors,
    processor_dtype,
    provenance_of,
)
from prefill_router.encoders.threads import default_threads
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.short_repr import short_repr


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
        self.pad_token_id: int = self._pieces.token_to_id(settings["pad_token"]) or 0

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> dict[str, list[list[int]]]:
        """The token ids of each text, not truncated."""
        rows = self._pieces.encode_batch(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [row.ids for row in rows]}


@short_repr
@final
@dataclass(frozen=True, eq=False)
class MiniLMEncoder(NetworkEncoder):
    """The packaged encoder. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its states.
        tokenizer: Its tokenizer.
        network: The blocks up to the last layer that can be read.
        last_layer: The last layer that can be read.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    made_by: Provenance
    tokenizer: WordPieces
    network: MiniLMNetwork
    last_layer: int
    batch_tokens: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return tuple(range(self.last_layer + 1))

    def read_batches(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Iterator[Batch]:
        """The states of prompts of similar length."""
        for numbers in batches([len(prompt.ids) for prompt in prompts], self.batch_tokens):
            yield numbers, self._read_batch([prompts[i] for i in numbers], sites)

    def with_workers(self, count: int) -> Encoder:
        """The encoder with so many batches at once; they share one session, of one thread each."""
        if count == 1:
            return self
        alone = replace(self, network=self.network.with_threads(1))
        return ParallelEncoder(self, [alone] * count, self.batch_tokens)

    def _read_batch(
        self, prompts: Sequence[TokenizedPrompt], sites: Sequence[Site]
    ) -> Float32[NDArray[np.float32], "site query hidden"]:
        lengths = np.array([len(prompt.ids) for prompt in prompts], dtype=np.int32)
        ids = np.full((len(prompts), lengths.max()), self.tokenizer.pad_token_id, dtype=np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt.ids)] = prompt.ids
        layers = sorted({site.layer for site in sites})
        poolings = sorted({site.pooling for site in sites})
        pooling = pooling_weights(lengths, poolings)
        states = self.network.pooled_states(ids, lengths, pooling, layers)
        return np.stack(
            [states[layers.index(s.layer), :, poolings.index(s.pooling)] for s in sites]
        )


def pooling_weights(
    lengths: NDArray[np.int32], poolings: Sequence[Pooling]
) -> Float32[NDArray[np.float32], "query pooling token"]:
    """The weight of each token of a prompt in each pooling; 0 for padding.

    Args:
        lengths: The number of tokens of each prompt, [query].
        poolings: `last` is the last token, `mean` the mean of all, and `rest` that of all but the
            first, which of a prompt of one token is that token.
    """
    place, count = np.arange(lengths.max()), lengths[:, None]
    inside = place < count
    later = inside & ((place > 0) | (count == 1))
    weights = {
        "last": place == count - 1,
        "mean": inside / count,
        "rest": later / np.maximum(count - 1, 1),
    }
    return np.stack([weights[pooling] for pooling in poolings], axis=1).astype(np.float32)


def load_minilm(request: EncoderRequest) -> MiniLMEncoder:
    """Load the packaged encoder; it runs on the processor, whatever device is requested.

    Raises:
        ConfigError: Its files can't be read, or an option is invalid.
        ProvenanceError: It isn't the expected encoder.
    """
    check_files(request)
    check_device(request.device)
    check_dtype(request.dtype)
    folder = Path(request.source)
    with loading_errors(request):
        config = SimpleNamespace(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        tokenizer = WordPieces(folder)
        files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
        dtype = request.dtype or processor_dtype()
        made_by = provenance_of(request, config, tokenizer, files, None, dtype)
        if request.expected is not None:
            request.expected.require(made_by, what=f"the encoder {request.source}")
        last = last_layer(request.layers, config.num_hidden_layers)
        network = MiniLMNetwork(
            config, folder / "model.safetensors", blocks=last, threads=default_threads()
        )
    most = request.batch_tokens or CPU_BATCH_TOKENS
    return MiniLMEncoder(made_by, tokenizer, network, last, most)
