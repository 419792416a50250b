"""Breaking on purpose: rules that say what goes wrong with which requests."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Literal, final, get_args

from pydantic import ConfigDict

from prefill_router.errors import ConfigError
from prefill_router.minipool.server.buckets import Bucket
from prefill_router.minipool.server.personas import Persona

Refusal = Literal[
    "status", "rate_limit", "rate", "unauthorized", "context_length", "unsupported_field"
]
Cut = Literal["break", "truncate", "hang", "error_event"]
Kind = Literal[
    "delay",
    "stall",
    "slow",
    Refusal,
    Cut,
    "usage",
    "bad_json",
    "bad_sse",
    "empty",
    "wrong_model",
    "finish",
]
REFUSALS = frozenset(get_args(Refusal))
CUTS = frozenset(get_args(Cut))


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that goes wrong, and when.

    Attributes:
        kind: What goes wrong.

            - `delay`: `seconds` before the headers.
            - `stall`: `seconds` after the headers, before the first token.
            - `slow`: `seconds` before each further chunk.
            - `status`: the HTTP status `status`.
            - `rate_limit`: 429 with `retry_after` seconds, told in the form `form`.
            - `rate`: the same, to requests beyond `per_second`, with `burst` at once allowed.
            - `unauthorized`: 401; `context_length`: 400 as where a prompt is too long.
            - `unsupported_field`: 400 where the request has the field `field`.
            - `break`: the connection is closed after `after` chunks of text.
            - `truncate`: the reply ends properly after `after` chunks, without its end marks.
            - `hang`: nothing more comes after `after` chunks.
            - `error_event`: an error comes as an event of the stream after `after` chunks.
            - `bad_json`, `bad_sse`: the chunk after `after` others is malformed.
            - `usage`: the counts are left out, or lies, as `usage` says.
            - `empty`: the answer has no text; what was generated is billed all the same.
            - `wrong_model`: the reply names the model `reply_model`.
            - `finish`: the finish reason is `finish`.
        model: The model it happens to; `*` is every one.
        share: Probability in [0, 1], drawn for each attempt at each prompt.
        attempts: Only the first so many attempts at each prompt.
        requests: Only these requests to the model, counted from 0.
        contains: Only where the last turn contains this text.
        times: At most so many times altogether.
        seconds: Of waiting.
        status: An HTTP status, 400 to 599.
        retry_after: Seconds; None tells nothing.
        form: How they are told: `Retry-After` in seconds or as a date, or `retry-after-ms`.
        per_second: Requests each second that `rate` lets through.
        burst: Requests that `rate` lets through at once.
        after: Chunks of text that are sent before; fewer where the answer is shorter.
        usage: Left out, all zero, a thousand times too large, negative, null, or text.
        finish: The reason to give.
        reply_model: The name to give.
        field: The field to refuse.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Kind
    model: str = "*"
    share: float = 1.0
    attempts: int | None = None
    requests: tuple[int, ...] | None = None
    contains: str | None = None
    times: int | None = None
    seconds: float = 1.0
    status: int = 500
    retry_after: float | None = None
    form: Literal["seconds", "date", "ms"] = "seconds"
    per_second: float = 10.0
    burst: int = 1
    after: int = 1
    usage: Literal["omit", "zero", "huge", "negative", "null", "text"] = "omit"
    finish: Literal["length", "content_filter"] = "length"
    reply_model: str = "another-model"
    field: str = "max_tokens"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"a fault has the share {self.share}; shares lie in [0, 1]")
        if self.status not in set(HTTPStatus) or not 400 <= self.status <= 599:
            raise ConfigError(f"a fault has the status {self.status}; errors are 400 to 599")
        if self.per_second <= 0 or self.burst < 1:
            raise ConfigError("a rate must let something through; give per_second and burst")
        if min(self.seconds, self.retry_after or 0, self.after) < 0:
            raise ConfigError("seconds, retry_after and after can't be negative")


@final
@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong, and how each model replies.

    Attributes:
        rules: Those that hold for a request all happen to it; but only the first refusal, and
            only the first of those that cut a reply off.
        seed: Of the shares. A draw depends on the rule, the model, the prompt and the number of
            the attempt at it, and not on the order in which requests come.
        personas: How models reply, by name; `*` is every other one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    rules: Sequence[Rule] = ()
    seed: int = 0
    personas: Mapping[str, Persona] = field(default_factory=dict)

    def persona_of(self, model: str) -> Persona:
        """How a model replies."""
        return self.personas.get(model) or self.personas.get("*") or Persona()

    def check_models(self, names: Sequence[str]) -> None:
        """Check that all models that are named are served.

        Raises:
            ConfigError: One isn't.
        """
        named = {*(rule.model for rule in self.rules), *self.personas}
        unknown = sorted(named - {"*", *names})
        if unknown:
            raise ConfigError(f"faults name the models {unknown}; those served are {list(names)}")


Effects = dict[str, Rule]
"""What goes wrong with one request, by kind, in the order of the rules."""


@final
class Mischief:
    """Decides what goes wrong with each request; remembers how many came."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, bytes]] = Counter()
        self._times: Counter[int] = Counter()
        self._buckets = [Bucket(rule.per_second, rule.burst) for rule in faults.rules]

    def next(self, model: str, prompt: str, fields: Mapping[str, Any]) -> tuple[Effects, float]:
        """What goes wrong with the next request; and the seconds that a `rate` asks to wait."""
        request, key = self._requests[model], (model, _digest(prompt))
        attempt = self._attempts[key]
        self._requests[model] += 1
        self._attempts[key] += 1
        effects: Effects = {}
        wait = 0.0
        for place, rule in enumerate(self._faults.rules):
            if not self._holds(place, rule, model, prompt, request) or _excluded(rule, effects):
                continue
            if rule.attempts is not None and attempt >= rule.attempts:
                continue
            if self._draw(place, key, attempt) >= rule.share:
                continue
            if rule.kind == "unsupported_field" and fields.get(rule.field) is None:
                continue
            if rule.kind == "rate" and not (wait := self._buckets[place].take()):
                continue
            self._times[place] += 1
            effects[rule.kind] = rule
        if REFUSALS & effects.keys():
            effects = {k: rule for k, rule in effects.items() if k in REFUSALS or k == "delay"}
        return effects, wait

    def _holds(self, place: int, rule: Rule, model: str, prompt: str, request: int) -> bool:
        return (
            rule.model in ("*", model)
            and (rule.requests is None or request in rule.requests)
            and (rule.contains is None or rule.contains in prompt)
            and (rule.times is None or self._times[place] < rule.times)
        )

    def _draw(self, place: int, key: tuple[str, bytes], attempt: int) -> float:
        """A number in [0, 1) that depends on nothing else."""
        text = f"{self._faults.seed}/{place}/{key[0]}/{attempt}/".encode() + key[1]
        return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()


def _excluded(rule: Rule, effects: Effects) -> bool:
    """Whether an earlier rule leaves nothing for this one to do."""
    if rule.kind in REFUSALS:
        return bool(REFUSALS & effects.keys())
    return rule.kind in effects or (rule.kind in CUTS and bool(CUTS & effects.keys()))
