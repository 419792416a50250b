"""Decision models behind an endpoint, which choose between options by what is said of them.

One is asked which target should answer each prompt, by the System One protocol (Laya,
`docs/http-api.md`), in several orders of the options at once, since the order moves what such
models say. The vector of a prompt has the log-odds of each option's mean probability.

The options are in a file of YAML, from targets' names to descriptions, in the order of the columns.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import httpx2
import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.special import logit

from prefill_router.encoders.base import Address, estimated_tokens
from prefill_router.encoders.endpoint import EndpointCall, EndpointCalls, Rows, VectorApi
from prefill_router.errors import ConfigError
from prefill_router.short_repr import short_repr
from prefill_router.yaml_files import read_yaml

DECISIONS = EndpointCall("systemone", "decisions")
_ASKED = "Which model should answer this request?"
_ORDERS = 3
_AT_A_TIME = 8  # calls
_LEAST = 1e-4  # of a probability, whose log-odds are finite then
_OFF = 0.05  # by which the probabilities of a distribution may be rounded
Shares = Float64[NDArray[np.float64], " option"]


@short_repr
@final
@dataclass(frozen=True)
class DecisionOptions:
    """What a decision model chooses from.

    Attributes:
        described: A description of each option, by its name, in the order of the columns.
    """

    described: Mapping[str, str]

    @classmethod
    def read(cls, file: str) -> "DecisionOptions":
        """Read a file of options.

        Raises:
            ConfigError: No file is named, or it has something else.
        """
        if not file:
            raise ConfigError(
                "a decision model is named with the file of its options, as in "
                "decision:MODEL@https://example.com/v1#options.yaml"
            )
        try:
            said = read_yaml(Path(file))
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
        is_text = isinstance(said, dict) and all(
            isinstance(part, str) and part for pair in said.items() for part in pair
        )
        if not is_text or len(said) < 2:
            raise ConfigError(
                f"{file} has no options; it needs at least two names of targets, each with a "
                "description, as in `small: Short questions.`"
            )
        return cls(said)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the columns."""
        return tuple(self.described)

    @property
    def digest(self) -> str:
        """The digest of all that the model is told."""
        told = json.dumps([_ASKED, _ORDERS, list(self.described.items())])
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        """An estimate of the tokens that the model reads of the options, beside each prompt."""
        return estimated_tokens(json.dumps(self.questions()))

    def questions(self) -> dict[str, Any]:
        """The same question, each time beginning with another option."""
        pairs = list(self.described.items())
        starts = dict.fromkeys(round(k * len(pairs) / _ORDERS) for k in range(_ORDERS))
        return {
            f"order{start}": {
                "type": "choice",
                "instructions": _ASKED,
                "criteria": dict(pairs[start:] + pairs[:start]),
            }
            for start in starts
        }


@final
class DecisionApi(VectorApi):
    """A client for the decisions of one model.

    Args:
        address: The model and its endpoint.
        options: What it chooses from.
        environment: The variables that hold the key; by default the process's environment.

    Raises:
        ConfigError: The key is malformed, or would go over plain http to another machine.
    """

    def __init__(
        self,
        address: Address,
        options: DecisionOptions,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._calls = EndpointCalls(address, DECISIONS, environment=environment)
        self._options, self._questions = options, options.questions()
        self.name, self.reads, self.tokens = address.name, options.digest, 0

    def embed(self, texts: Sequence[str]) -> tuple[Rows, str]:
        """The log-odds of each option for texts, in order, and the model name in the response.

        Raises:
            UpstreamError: A call fails, or its response isn't a probability of each option.
        """
        with self._calls.connected() as client, ThreadPoolExecutor(_AT_A_TIME) as pool:
            answers = list(pool.map(partial(self._asked, client), texts))
        self.tokens += sum(tokens for _, _, tokens in answers)
        shares = np.clip([share for share, _, _ in answers], _LEAST, 1 - _LEAST)
        models = sorted({model for _, model, _ in answers})
        return logit(shares).astype(np.float32), "+".join(models)

    def _asked(self, client: httpx2.Client, text: str) -> tuple[Shares, str, int]:
        body = {"model": self._calls.address.model, "state": text, "questions": self._questions}
        content = self._calls.ask(client, body)
        try:
            said = json.loads(content)
            found = [self._shares(said["answers"][name]) for name in self._questions]
        except (KeyError, TypeError, ValueError, RecursionError):
            raise self._calls.malformed(
                "something other than a probability of each option"
            ) from None
        usage = said.get("usage")
        tokens = usage.get("input_tokens") if isinstance(usage, Mapping) else None
        told = estimated_tokens(json.dumps(body))
        return (
            np.mean(found, axis=0),
            self._calls.model(said),
            tokens if isinstance(tokens, int) and tokens > 0 else told,
        )

    def _shares(self, answer: Mapping[str, Any]) -> Shares:
        """The probabilities of one answer.

        Raises:
            ValueError: They aren't a distribution over the options.
        """
        given = answer["probabilities"]
        shares = np.array([float(given[name]) for name in self._options.names])
        is_whole = len(given) == len(shares) and abs(shares.sum() - 1) <= _OFF
        if not is_whole or not (shares >= 0).all():
            raise ValueError
        result: Shares = shares / shares.sum()
        return result
