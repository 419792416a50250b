"""Encoders from Hugging Face: any causal LM or encoder, by hub id or local folder.

Only the blocks up to the last layer that is wanted are loaded and run, and never the vocabulary
head. Batches are padded on the right and masked, which is exact for every family tested; packing
several prompts into one row is silently wrong for hybrids, so it isn't done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import nn

from prefill_router.activations import Provenance, Site
from prefill_router.brief import brief
from prefill_router.data import Query
from prefill_router.encoders.base import Encoder, States, TokenizedPrompt, require_finite
from prefill_router.encoders.batches import batches
from prefill_router.encoders.prompts import check_prompt, input_text, tokenized
from prefill_router.encoders.reading import pad, read_batch
from prefill_router.errors import PromptError
from prefill_router.progress import Progress, SilentProgress


@brief
@final
@dataclass(frozen=True, eq=False)
class HubEncoder(Encoder):
    """A network of `transformers`, read at its blocks. Made by `load_encoder`.

    Attributes:
        made_by: The provenance of its states.
        tokenizer: That of the network.
        network: The base network, cut to the blocks that are needed.
        blocks: Its blocks.
        last_layer: The last layer that can be read.
        batch_tokens: At most so many tokens, padding included, in one batch.
    """

    made_by: Provenance
    tokenizer: Any
    network: nn.Module
    blocks: nn.ModuleList
    last_layer: int
    batch_tokens: int

    @property
    def provenance(self) -> Provenance:
        """What makes the states."""
        return self.made_by

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return tuple(range(self.last_layer + 1))

    @cached_property
    def device(self) -> torch.device:
        """Where the network runs."""
        return next(self.network.parameters()).device

    @property
    def padding(self) -> int:
        """The token that fills rows up; masked, but some networks count positions by it."""
        config: Any = self.network.config
        ids = (config.pad_token_id, self.tokenizer.pad_token_id, 0)
        return next(i for i in ids if isinstance(i, int) and i >= 0)

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The tokens of each query's prompt, in order, cut to the encoder's limit.

        Raises:
            PromptError: A prompt can't be encoded, or the template refuses its roles.
        """
        for query in queries:
            check_prompt(query)
        if not queries:
            return []
        texts = [input_text(query, self.made_by.template, self._render) for query in queries]
        is_plain = self.made_by.template == "plain"
        ids = self.tokenizer(texts, add_special_tokens=is_plain)["input_ids"]
        limit = self.made_by.max_tokens
        return tokenized(queries, ids, max_tokens=limit, encoder=self.made_by.encoder)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order.

        Raises:
            ConfigError: A site's layer isn't loaded.
            StoreError: A state isn't finite.
        """
        self.check_sites(sites)
        wanted = tuple(dict.fromkeys(sites))
        shape = (len(wanted), len(prompts), self.made_by.hidden_size)
        rows = np.empty(shape, dtype=np.float32)
        total = float(sum(len(prompt.ids) for prompt in prompts))
        with (progress or SilentProgress()).task("tokens", total=total) as advance:
            for numbers in batches([len(prompt.ids) for prompt in prompts], self.batch_tokens):
                rows[:, numbers] = self._read([prompts[i].ids for i in numbers], wanted)
                advance(float(sum(len(prompts[i].ids) for i in numbers)))
        states = dict(zip(wanted, rows, strict=True))
        require_finite(states, prompts, self.made_by.dtype)
        return states

    def _read(self, ids: list[Any], sites: tuple[Site, ...]) -> Any:
        batch = pad(ids, self.padding, self.device)
        return read_batch(self.network, self.blocks, batch, sites).cpu().numpy()

    def _render(self, query: Query, messages: list[dict[str, str]]) -> str:
        import jinja2

        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, TypeError, ValueError):
            roles = [message["role"] for message in messages]
            raise PromptError(
                f"the chat template of {self.made_by.encoder} refuses a chat of the roles {roles}; "
                "mend the chat, or encode with --template plain",
                query_id=query.id,
            ) from None
        return str(text)
