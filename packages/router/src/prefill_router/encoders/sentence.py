"""Embeddings of sentence-transformers models, as `SentenceTransformer.encode` returns them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from prefill_router.accelerator import torch_device
from prefill_router.activations import Provenance
from prefill_router.data import Query, prompt_text
from prefill_router.encoders.base import Encoder, States, VectorEncoder
from prefill_router.encoders.encoder_names import EncoderRequest, check_vector_options
from prefill_router.encoders.parallel import ParallelEncoder, share_weights
from prefill_router.encoders.provenance import tree_revision
from prefill_router.encoders.tokenisation import (
    TokenizedPrompt,
    check_prompt,
    estimate_text_tokens,
    vector_prompt,
)
from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports
from prefill_router.short_repr import short_repr

_NO_LIMIT = 1 << 20
"""The limit in tokens where a model has none."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class SentenceEncoder(VectorEncoder):
    """A sentence-transformers model. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its embeddings.
        model: The `SentenceTransformer`.
        prompt: The text that is put before each prompt.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    made_by: Provenance
    model: Any
    prompt: str
    batch_tokens: int

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order; the model truncates long ones at the end.

        Raises:
            PromptError: A prompt can't be encoded, or has no token.
        """
        for query in queries:
            check_prompt(query)
        texts = [prompt_text(query.prompt) for query in queries]
        rows = _token_ids(self.model.tokenizer, [self.prompt + text for text in texts])
        return [
            vector_prompt(
                query, text, ids[: self.made_by.max_tokens], len(ids), self.made_by.encoder
            )
            for query, text, ids in zip(queries, texts, rows, strict=True)
        ]

    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The embedding of each prompt, in order."""
        embeddings = self.model.encode(
            [prompt.text for prompt in prompts],
            prompt=self.prompt,
            batch_size=len(prompts),
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return np.asarray(embeddings, dtype=np.float32)

    def with_workers(self, count: int) -> Encoder:
        """The encoder with so many batches at once on a processor; on a GPU it is itself."""
        if self.model.device.type != "cpu" or count == 1:
            return self
        copies = [replace(self, model=share_weights(self.model)) for _ in range(count)]
        return ParallelEncoder(self, copies, self.batch_tokens)


def load_sentence_encoder(request: EncoderRequest, *, prompt: str) -> SentenceEncoder:
    """Load a sentence-transformers model.

    Args:
        request: The requested model and its options.
        prompt: The name of one of the model's own prompts; empty for its default.

    Raises:
        ConfigError: It can't be found or reached, or an option is invalid.
        MissingExtraError: sentence-transformers isn't installed.
        ProvenanceError: It isn't the expected encoder.
    """
    transformer = _import_transformer(request.name)
    from prefill_router.encoders.devices import batch_tokens_on
    from prefill_router.encoders.pretrained import commit_of, hub_errors, prepare_loading

    check_vector_options(request)
    prepare_loading(request)
    device = torch_device(request.device)
    with hub_errors(request):
        commit = commit_of(request, "modules.json", "config.json")
        model = transformer(
            request.source,
            device=str(device),
            revision=commit or request.revision,
            trust_remote_code=request.trust_remote_code,
            model_kwargs=_dtype(request),
        )
    text = _prompt(model, prompt, request.name)
    made_by = _provenance(request, model, text, commit)
    if request.expected is not None:
        request.expected.require(made_by, what=f"the encoder {request.source}")
    most = request.batch_tokens or batch_tokens_on(device)
    return SentenceEncoder(made_by, model, text, most)


def _import_transformer(name: str) -> Any:
    with optional_imports(f"the encoder {name}"):
        from sentence_transformers import SentenceTransformer
    return SentenceTransformer


def _dtype(request: EncoderRequest) -> dict[str, Any] | None:
    from prefill_router.encoders.devices import dtype_of

    if request.dtype is None:
        return None  # the type of the saved model
    return {"dtype": dtype_of(request.dtype, torch_device(request.device))}


def _prompt(model: Any, name: str, encoder: str) -> str:
    """The text of one of the model's prompts."""
    prompts: dict[str, str] = model.prompts or {}
    if name and name not in prompts:
        raise ConfigError(
            f"{encoder} names the prompt {name!r}; the model has {sorted(prompts) or 'none'}"
        )
    return prompts.get(name or model.default_prompt_name or "") or ""


def _provenance(request: EncoderRequest, model: Any, prompt: str, commit: str | None) -> Provenance:
    dtype = next((p.dtype for p in model.parameters()), None)
    return Provenance(
        encoder=request.name,
        revision=commit or tree_revision(Path(request.source)),
        template="plain",
        template_hash=hashlib.sha256(prompt.encode()).hexdigest()[:40],
        max_tokens=_max_tokens(request, model),
        dtype=str(dtype or "float32").removeprefix("torch."),
        num_layers=1,
        hidden_size=len(model.encode("a", prompt=prompt, show_progress_bar=False)),
    )


def _max_tokens(request: EncoderRequest, model: Any) -> int:
    """The limit of tokens, which is set in the model if it differs from its own."""
    own_limit = model.max_seq_length
    has_limit = isinstance(own_limit, int | float) and 0 < own_limit < _NO_LIMIT
    limit = int(own_limit) if has_limit else _NO_LIMIT
    max_tokens = request.max_tokens
    if max_tokens is None or max_tokens == limit:
        return limit
    if request.expected is not None and max_tokens > limit:
        return limit  # a difference is reported with the others
    if not 1 <= max_tokens <= limit or not hasattr(model[0], "max_seq_length"):
        raise ConfigError(f"max_tokens is {max_tokens}; this encoder supports 1 to {limit} tokens")
    model.max_seq_length = max_tokens
    return max_tokens


def _token_ids(tokenizer: Any, texts: list[str]) -> list[Sequence[int]]:
    """The tokens of whole texts; only their number is right if the model isn't a transformer."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    if not texts:
        return []
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        ids: list[Sequence[int]] = tokenizer(texts, truncation=False, verbose=False)["input_ids"]
        return ids
    if isinstance(tokenizer, Tokenizer):
        return [row.ids for row in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return [range(estimate_text_tokens(text)) for text in texts]
