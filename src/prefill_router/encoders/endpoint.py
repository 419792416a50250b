"""Embeddings of an OpenAI-compatible endpoint.

An endpoint says neither how it counts tokens nor which weights it runs. Tokens are estimated (one
for four bytes), and the revision is the name that the endpoint gives its model: where it gives
another one later, its embeddings are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from prefill_router.activations import Provenance
from prefill_router.brief import brief
from prefill_router.data import Query, prompt_text
from prefill_router.encoders.address import Address
from prefill_router.encoders.base import States, TokenizedPrompt
from prefill_router.encoders.embeddings_api import EmbeddingsApi
from prefill_router.encoders.named import EncoderName
from prefill_router.encoders.own import OwnEncoder, as_read, check_options, estimated_tokens
from prefill_router.encoders.prompts import check_prompt
from prefill_router.encoders.request import Request
from prefill_router.errors import ConfigError, PromptError, ProvenanceError, UpstreamError

MOST_TOKENS = 8192
_BATCH_TOKENS = 16_384
_MOST_INPUTS = 64
_PROBE = "embedding"
_OF_ONE_TEXT = ("context_too_long", "content_filter", "refused")
"""Failures that one text may be the reason for."""


@brief
@final
@dataclass(frozen=True, eq=False)
class EndpointEncoder(OwnEncoder):
    """A model behind an endpoint. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its embeddings.
        api: Asks for them.
        most_tokens: At most so many tokens, as estimated, in one request.
    """

    made_by: Provenance
    api: EmbeddingsApi
    most_tokens: int

    @property
    def provenance(self) -> Provenance:
        """What makes the embeddings."""
        return self.made_by

    @property
    def batch_tokens(self) -> int:
        """At most so many tokens, as estimated, in one request."""
        return self.most_tokens

    @property
    def billed_tokens(self) -> int:
        """Tokens read so far, as the endpoint counts them, or estimated where it doesn't say."""
        return self.api.tokens

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The text of each query's prompt, in order, cut to the limit, and its estimated tokens.

        Raises:
            PromptError: A prompt can't be encoded, or is empty.
        """
        for query in queries:
            check_prompt(query)
        return [self._as_read(query, prompt_text(query.prompt)) for query in queries]

    def _as_read(self, query: Query, text: str) -> TokenizedPrompt:
        count, limit = estimated_tokens(text), self.made_by.max_tokens
        ids = [0] * min(count, limit)
        kept = text if count <= limit else _cut(text, limit)
        return as_read(query, kept, ids, count, self.made_by.encoder)

    def vectors(self, prompts: Sequence[TokenizedPrompt]) -> States:
        """The embedding of each prompt, in order.

        Raises:
            UpstreamError: The endpoint gives none.
            PromptError: It refuses one prompt.
            ProvenanceError: It serves another model by now.
        """
        parts = [prompts[i : i + _MOST_INPUTS] for i in range(0, len(prompts), _MOST_INPUTS)]
        return np.concatenate([rows for part in parts for rows in self._asked(part)])

    def _asked(self, prompts: Sequence[TokenizedPrompt]) -> Iterator[States]:
        """Ask; where something is refused, by halves, which finds the prompt that is the reason."""
        try:
            rows, model = self.api.embed([prompt.text for prompt in prompts])
        except UpstreamError as error:
            if error.failure not in _OF_ONE_TEXT:
                raise
            if len(prompts) == 1:
                raise PromptError(str(error), query_id=prompts[0].query_id) from None
            middle = len(prompts) // 2
            yield from self._asked(prompts[:middle])
            yield from self._asked(prompts[middle:])
            return
        self._check(rows, model)
        yield rows

    def _check(self, rows: States, model: str) -> None:
        served, width = _revision(model), rows.shape[1]
        if served != self.made_by.revision or width != self.made_by.hidden_size:
            raise ProvenanceError(
                f"{self.made_by.encoder} gives embeddings of {served}, {width} wide; needed are "
                f"those of {self.made_by.revision}, {self.made_by.hidden_size} wide: encode the "
                "queries again"
            )


def load_endpoint_encoder(request: Request) -> EndpointEncoder:
    """Get ready to ask an endpoint; unless its provenance is known, it is asked for one embedding.

    Raises:
        ConfigError: The name, the key or an option doesn't fit.
        UpstreamError: The endpoint gives no embedding.
        ProvenanceError: It isn't the encoder that is expected.
    """
    check_options(request)
    address = Address.parse(EncoderName.parse(request.name).place)
    api = EmbeddingsApi(address)
    if request.batch_tokens is not None and request.batch_tokens < 1:
        raise ConfigError(f"a batch has {request.batch_tokens} tokens; it needs at least one")
    if request.expected is not None:
        made_by = replace(request.expected, encoder=address.name)
        request.expected.require(made_by, what=f"the encoder {address.name}")
    else:
        made_by = _provenance(request, address, api)
    return EndpointEncoder(made_by, api, request.batch_tokens or _BATCH_TOKENS)


def _provenance(request: Request, address: Address, api: EmbeddingsApi) -> Provenance:
    if request.revision is not None or request.dtype is not None:
        raise ConfigError("an endpoint has no revision or dtype to choose; leave them out")
    asked = request.max_tokens
    if asked is not None and asked < 1:
        raise ConfigError(f"max_tokens is {asked}; it must be at least 1")
    rows, model = api.embed([_PROBE])
    return Provenance(
        encoder=address.name,
        revision=_revision(model),
        template="plain",
        template_hash="text",
        max_tokens=asked or MOST_TOKENS,
        dtype="unknown",
        num_layers=1,
        hidden_size=rows.shape[1],
    )


def _revision(model: str) -> str:
    return f"served:{model}"


def _cut(text: str, limit: int) -> str:
    """About so many tokens of a text: half from the beginning, half from the end."""
    content = text.encode()
    size = len(content) * limit // (2 * estimated_tokens(text))
    tail = content[len(content) - size :].decode(errors="ignore")
    return content[:size].decode(errors="ignore") + tail
