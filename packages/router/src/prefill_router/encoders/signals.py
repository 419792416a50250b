"""Language-model signals: three numbers that a causal language model assigns to a prompt.

    mean log-probability    of each token given those before it, in nats
    perplexity              exp(-mean log-probability)
    mean token entropy      of the predicted distributions of these tokens, in nats

Every token of the text counts. The first one is predicted from the token that begins documents: the
tokenizer's BOS, or else its EOS, as GPT-2 and Qwen were trained. Where there is neither, the first
token can't be predicted and doesn't count, and a prompt of one token is scored as by a uniform
distribution over the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from prefill_router.accelerator import torch_device
from prefill_router.activations import Provenance
from prefill_router.data import Query, prompt_text
from prefill_router.encoders.base import Encoder, States, VectorEncoder
from prefill_router.encoders.devices import batch_tokens_on, dtype_name, dtype_of
from prefill_router.encoders.encoder_names import EncoderRequest, check_vector_options
from prefill_router.encoders.hub import TokenBatch, pad
from prefill_router.encoders.parallel import ParallelEncoder, share_weights
from prefill_router.encoders.pretrained import (
    commit_of,
    config_and_tokenizer,
    hub_errors,
    prepare_loading,
    text_config,
    tokenizer_files,
)
from prefill_router.encoders.provenance import provenance_of, token_limit
from prefill_router.encoders.tokenisation import TokenizedPrompt, check_prompt, pair_tokens
from prefill_router.errors import ConfigError
from prefill_router.short_repr import short_repr

SIGNALS = ("mean log-probability", "perplexity", "mean token entropy")
_CHUNK_NUMBERS = 1 << 24
"""The most logits in memory at a time (64 MiB)."""
_LEAST = -80.0
"""Lower mean log-probabilities are clipped to this, since their perplexity would overflow."""
_TOLERANCE = 1e-2


@short_repr
@final
@dataclass(frozen=True, eq=False)
class SignalsEncoder(VectorEncoder):
    """A causal language model whose predictions are read. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its signals.
        tokenizer: The model's tokenizer.
        model: The model with its vocabulary head.
        start: The token that begins documents, if there is one.
        batch_tokens: The most tokens, padding included, in one batch.
    """

    made_by: Provenance
    tokenizer: Any
    model: nn.Module
    start: int | None
    batch_tokens: int

    @cached_property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, truncated to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded, or has no token.
        """
        for query in queries:
            check_prompt(query)
        if not queries:
            return []
        texts = [prompt_text(query.prompt) for query in queries]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        limit = self.made_by.max_tokens
        return pair_tokens(queries, ids, max_tokens=limit, encoder=self.made_by.encoder)

    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The signals of each prompt, in order."""
        start = [] if self.start is None else [self.start]
        batch = pad(
            [np.concatenate([start, prompt.ids]).astype(np.int64) for prompt in prompts],
            0,  # masked padding at the end
            self.device,
        )
        with torch.inference_mode():
            scores = _scores(self.model, batch)
        return _signals(scores, batch, vocabulary=_vocabulary(self.model))

    def with_workers(self, count: int) -> Encoder:
        """The encoder with so many batches at once on a processor; on a GPU it is itself."""
        if self.device.type != "cpu" or count == 1:
            return self
        copies = [replace(self, model=share_weights(self.model)) for _ in range(count)]
        return ParallelEncoder(self, copies, self.batch_tokens)


def load_signals_encoder(request: EncoderRequest) -> SignalsEncoder:
    """Load a causal language model with its vocabulary head.

    Raises:
        ConfigError: It can't be found or reached, isn't a causal language model, or an option is
            invalid.
        ProvenanceError: It isn't the expected encoder.
    """
    check_vector_options(request)
    prepare_loading(request)
    device = torch_device(request.device)
    dtype = dtype_of(request.dtype or "float32", device)
    with hub_errors(request):
        config, tokenizer = config_and_tokenizer(request)
        commit = commit_of(request, "config.json")
        start = _start(tokenizer)
        files = tokenizer_files(request.source, commit)
        made_by = _provenance(request, config, tokenizer, files, commit, start, dtype)
        if request.expected is not None:
            request.expected.require(made_by, what=f"the encoder {request.source}")
        loader: Any = AutoModelForCausalLM
        model, report = loader.from_pretrained(
            request.source,
            revision=commit,
            dtype=dtype,
            trust_remote_code=request.trust_remote_code,
            output_loading_info=True,
        )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ConfigError(
            f"the weights of {request.source} aren't a complete causal language model: "
            f"{len(report['missing_keys'])} tensors are missing, "
            f"{len(report['mismatched_keys'])} are of another shape"
        )
    model = model.eval().requires_grad_(False).to(device)
    _check_head(model, request.source)
    most = request.batch_tokens or batch_tokens_on(device)
    return SignalsEncoder(made_by, tokenizer, model, start, most)


def _start(tokenizer: Any) -> int | None:
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return next((i for i in ids if i is not None), None)


def _provenance(
    request: EncoderRequest,
    config: Any,
    tokenizer: Any,
    files: list[Path],
    commit: str | None,
    start: int | None,
    dtype: torch.dtype,
) -> Provenance:
    text = text_config(config)
    limit = token_limit(text, tokenizer) - (start is not None)
    plain_request = replace(request, template="plain")
    made_by = provenance_of(plain_request, text, tokenizer, files, commit, dtype_name(dtype))
    most = min(made_by.max_tokens, limit)
    return replace(made_by, max_tokens=most, num_layers=1, hidden_size=len(SIGNALS))


def _scores(model: Any, batch: TokenBatch) -> Tensor:
    """Log-probability and entropy at each position but the last, [query, token, 2], float32.

    The network runs once; its head is applied to a bounded number of positions at a time.
    """
    hidden = _hidden(model, batch)[:, :-1]
    real = batch.mask[:, 1:] == 1
    states, following = hidden[real], batch.ids[:, 1:][real]
    size = max(1, _CHUNK_NUMBERS // _vocabulary(model))
    values = torch.zeros((len(states), 2), device=states.device)
    for first in range(0, len(states), size):
        rows = slice(first, first + size)
        logs = _logits(model, states[rows]).float().log_softmax(dim=-1)
        values[rows, 0] = logs.gather(1, following[rows, None])[:, 0]
        values[rows, 1] = torch.special.entr(logs.exp()).sum(dim=-1)
    scores = torch.zeros((*real.shape, 2), device=states.device)
    scores[real] = values
    return scores


def _hidden(model: Any, batch: TokenBatch) -> Tensor:
    out = model.base_model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def _logits(model: Any, states: Tensor) -> Tensor:
    logits: Tensor = model.get_output_embeddings()(states)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)  # Gemma
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _vocabulary(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def _check_head(model: Any, source: str) -> None:
    """Check that the model's predictions are its head applied to the network's output.

    Raises:
        ConfigError: The model's family computes something more.
    """
    batch = pad([np.arange(min(8, _vocabulary(model)))], 0, next(model.parameters()).device)
    with torch.inference_mode():
        whole = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).logits
        mine = _logits(model, _hidden(model, batch))
    if whole.shape != mine.shape or not torch.allclose(
        whole.float(), mine.float(), rtol=_TOLERANCE, atol=_TOLERANCE
    ):
        raise ConfigError(
            f"{source} is a {type(model).__name__}, whose predictions can't be computed in "
            "chunks; choose another causal language model, such as gpt2"
        )


def _signals(scores: Tensor, batch: TokenBatch, *, vocabulary: int) -> States:
    """The three numbers of each prompt, from the scores of its tokens."""
    counts = (batch.lengths.cpu().numpy() - 1)[:, None]
    sums = scores.double().sum(dim=1).cpu().numpy()
    means = sums / np.maximum(counts, 1)
    unknown = np.log(vocabulary)
    means = np.where(counts > 0, means, [-unknown, unknown])
    log_probability = np.maximum(means[:, 0], _LEAST)
    columns = [log_probability, np.exp(-log_probability), means[:, 1]]
    return np.stack(columns, axis=1).astype(np.float32)
