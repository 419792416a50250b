"""Real language models: batched generation, in which no answer depends on the others.

Decoding is greedy, or sampling with a seed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from jinja2 import TemplateError
from numpy.typing import NDArray
from safetensors import SafetensorError
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from prefill_router.encoders import cache_argument
from prefill_router.errors import ConfigError
from prefill_router_minipool.server.generation import Job, Message, Prompt, Sampling
from prefill_router_minipool.server.protocol import ApiError

_MOST_PADDED = 8192  # tokens of the prompts of one batch, padding included


@final
class LocalModel:
    """A causal language model from a folder, on the CPU, in float32.

    Args:
        folder: Weights, tokenizer and chat template, as `transformers` saves them.
        name: The name that requests ask for; by default the folder's.

    Raises:
        ConfigError: The folder doesn't have a causal language model with a tokenizer.
    """

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        self.name = name or folder.name
        self._network, self._tokenizer = _load(folder)
        self._text: Any = self._tokenizer.backend_tokenizer
        self.context = int(self._network.config.max_position_embeddings)
        ends = self._network.generation_config.eos_token_id
        if ends is None:
            ends = self._tokenizer.eos_token_id
        self._ends = frozenset([ends] if isinstance(ends, int) else ends or ())

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        """The conversation in the model's chat template, with its generation prompt.

        Raises:
            ApiError: The template refuses the conversation.
        """
        rows = [{"role": role, "content": text} for role, text in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                rows, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ApiError(f"the chat template refuses it: {reason}", param="messages") from None
        return self._make_prompt(messages[-1][1], text)

    def read_text(self, text: str) -> Prompt:
        """The tokens of a bare text.

        Raises:
            ApiError: The text has no tokens.
        """
        prompt = self._make_prompt(text, text)
        if not prompt.ids:
            raise ApiError("prompt has no tokens", param="prompt")
        return prompt

    def _make_prompt(self, turn: str, text: str) -> Prompt:
        ids = self._text.encode(text, add_special_tokens=False).ids
        return Prompt(turn, len(ids), tuple(ids))

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        """Read all prompts of a batch together, then generate one token of each at a time."""
        for part in _split_batches(jobs):
            writers = [_TextWriter(job, self._text, self._ends) for job in part]
            batch = _Batch(self._network, writers)
            while step := batch.step():
                yield step


@final
class _Batch:
    """Rows that are generated together.

    Prompts are padded on the left, so that all rows continue in the same column; the mask and the
    positions leave the padding out.

    Attributes:
        writers: The rows that aren't finished.
    """

    def __init__(self, network: Any, writers: list["_TextWriter"]) -> None:
        self.writers = writers
        self._network = network
        self._cache: Any = DynamicCache(config=network.config)
        rows = [writer.job.prompt.ids for writer in writers]
        width = max(map(len, rows))
        pads = torch.tensor([width - len(row) for row in rows])
        columns = torch.arange(width)
        self._real: Bool[Tensor, "row column"] = columns[None] >= pads[:, None]
        self._ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
        self._positions = (columns[None] - pads[:, None]).clamp(min=0)

    @torch.inference_mode()
    def step(self) -> list[tuple[Job, str, bool]]:
        """Choose the next token of each row; empty when all rows are finished."""
        self._drop_finished()
        if not self.writers:
            return []
        logits = self._read()
        tokens = _choose(logits, self.writers)
        self._ids = torch.tensor(tokens)[:, None]
        self._positions = self._positions[:, -1:] + 1
        self._real = torch.nn.functional.pad(self._real, (0, 1), value=True)
        return [w.write(token) for w, token in zip(self.writers, tokens, strict=True)]

    def _read(self) -> Float[Tensor, "row token"]:
        """The logits after the newest column."""
        newest = self._ids.shape[1]
        if newest == 1:
            mask = self._real[:, None, None, :]
        else:
            square = torch.ones(newest, newest, dtype=torch.bool)
            own = torch.eye(newest, dtype=torch.bool)  # else the padding would attend to nothing
            mask = ((self._real[:, None, :] & square.tril()) | own)[:, None]
        output = self._network(
            input_ids=self._ids,
            attention_mask=mask,
            position_ids=self._positions,
            logits_to_keep=1,
            **{cache_argument(self._network): self._cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _drop_finished(self) -> None:
        open_rows = [i for i, writer in enumerate(self.writers) if not writer.job.over]
        if len(open_rows) == len(self.writers):
            return
        self.writers = [self.writers[i] for i in open_rows]
        if open_rows:
            rows = torch.tensor(open_rows)
            if self._cache.get_seq_length():
                self._cache.batch_select_indices(rows)
            self._ids, self._positions = self._ids[rows], self._positions[rows]
            self._real = self._real[rows]


@final
class _TextWriter:
    """Decodes the tokens of one row into text."""

    def __init__(self, job: Job, text: Any, ends: frozenset[int]) -> None:
        self.job = job
        self.chooser = TokenSampler(job.sampling)
        self._text = text
        self._ends = ends
        self._tokens: list[int] = []
        self._stream = DecodeStream(skip_special_tokens=True)
        self._text_length = 0

    def write(self, token: int) -> tuple[Job, str, bool]:
        """The text that a token adds; a character of several tokens comes with the last of them."""
        ended = token in self._ends
        if not ended:
            self._tokens.append(token)
        if ended or self.job.generated + 1 >= self.job.max_tokens:
            whole = self._text.decode(self._tokens, skip_special_tokens=True)
            return self.job, whole[self._text_length :], ended
        piece = self._stream.step(self._text, token) or ""
        self._text_length += len(piece)
        return self.job, piece, False


def _load(folder: Path) -> tuple[Any, Any]:
    """The network and its tokenizer."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder} can't be served: {first}") from None
    return network.eval(), tokenizer


def _choose(logits: Float[Tensor, "row token"], writers: list[_TextWriter]) -> list[int]:
    tokens: list[int] = logits.argmax(-1).tolist()
    for i, writer in enumerate(writers):
        if not writer.chooser.greedy:
            tokens[i] = writer.chooser.choose(logits[i].double().numpy())
    return tokens


def _split_batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Batches of jobs with prompts of similar length, so that padding stays small."""
    part: list[Job] = []
    for job in sorted(jobs, key=lambda job: job.prompt.tokens):
        if part and (len(part) + 1) * job.prompt.tokens > _MOST_PADDED:
            yield part
            part = []
        part.append(job)
    if part:
        yield part


@final
class TokenSampler:
    """Chooses the tokens of one answer.

    Each answer has its own random generator, so that it doesn't depend on the rest of the batch.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(key=sampling.seed % 2**64))

    @property
    def greedy(self) -> bool:
        """Whether it always takes the most probable token."""
        return self._sampling.temperature == 0

    def choose(self, logits: Float[np.ndarray, " token"]) -> int:
        """Draw a token at the temperature, from the nucleus of `top_p`."""
        powers = np.exp((logits - logits.max()) / self._sampling.temperature)
        order = np.argsort(-powers, kind="stable")
        shares: NDArray[np.float64] = np.cumsum(powers[order]) / powers.sum()
        nucleus_size = int(np.searchsorted(shares, self._sampling.top_p)) + 1
        point = self._random.random() * shares[min(nucleus_size, len(shares)) - 1]
        return int(order[min(np.searchsorted(shares, point, side="right"), nucleus_size - 1)])
