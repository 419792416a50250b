"""Breaking on purpose: rules that say what goes wrong with which requests.

A persona is a provider's dialect: how it tells of reasoning and usage, so that the same answer
comes in several. A rate limit can be a real one: so many requests each second, and no more.

A file of faults is YAML::

    seed: 0
    rules:
      - {kind: rate_limit, share: 0.1, retry_after: 0.5, form: ms}
      - {kind: status, status: 503, attempts: 1}         # the first attempt at every prompt
      - {kind: break, model: atlas, after: 2, requests: [0, 3]}
    personas:
      atlas: {style: deepseek, reasoning: 12}

One rule as text is its kind and its fields: `rate_limit,share=0.1,retry_after=0.5,form=ms`.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Literal, final, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from prefill_router.client import TokenBucket
from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import Dialect
from prefill_router.yaml_files import DistinctLoader, NotYamlError, parse_yaml

_THOUGHTS = ("let ", "me t", "hink", ". ", "well", ", ", "so ", "it i", "s. ")
_TEXT_FIELD: dict[Dialect, str] = {"vllm": "reasoning", "openrouter": "reasoning"}
"""Of the others it is `reasoning_content`."""
_TELLS_REASONING_TOKENS = frozenset({"openai", "deepseek", "qwen", "openrouter"})
_TELLS_NO_DETAILS = frozenset({"anthropic", "vllm", "sglang", "nemotron"})


@final
@dataclass(frozen=True, kw_only=True)
class Persona:
    """A provider's dialect.

    Attributes:
        style: Whose. `openai` hides its reasoning and counts it, `anthropic` hides it and doesn't,
            `nemotron` writes it into the answer between `<think>` and `</think>`, the others send
            it in a field of its own.
        reasoning: Tokens of made-up reasoning before each answer, unless the request turns it off.
        cached: Tokens of each prompt that were read from a cache, as far as there are so many.
        cost: Dollars that `openrouter` says each answer cost.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    style: Dialect = "openai"
    reasoning: int = 0
    cached: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        if min(self.reasoning, self.cached, self.cost) < 0:
            raise ConfigError("a persona's reasoning, cached and cost can't be negative")

    @property
    def shows_reasoning(self) -> bool:
        """Whether its reasoning is sent at all."""
        return self.style not in ("openai", "anthropic")

    @property
    def opening(self) -> bytes:
        """What comes before the first event of a stream: OpenRouter keeps connections alive so."""
        return b": OPENROUTER PROCESSING\n\n" if self.style == "openrouter" else b""

    @property
    def joins_usage(self) -> bool:
        """Whether a stream's usage comes with the finish reason, and not in a chunk of its own."""
        return self.style == "deepseek"

    def thoughts(self, tokens: int) -> list[str]:
        """Reasoning of so many tokens."""
        return [_THOUGHTS[i % len(_THOUGHTS)] for i in range(tokens)]

    def reasoning_delta(self, text: str) -> dict[str, Any]:
        """The fields of a chunk, or of a message, that hold reasoning."""
        if self.style == "nemotron":
            return {"content": text}
        delta: dict[str, Any] = {_TEXT_FIELD.get(self.style, "reasoning_content"): text}
        if self.style == "openrouter":
            detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
            delta["reasoning_details"] = [detail]
        return delta

    def extra(self) -> dict[str, Any]:
        """Further fields beside `model`."""
        return {"provider": "minipool"} if self.style == "openrouter" else {}

    def usage(self, prompt: int, completion: int, reasoning: int) -> dict[str, Any]:
        """The counts of an answer; `completion` includes `reasoning`."""
        cached = min(self.cached, prompt)
        told: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if self.style not in _TELLS_NO_DETAILS:
            told["prompt_tokens_details"] = {"cached_tokens": cached}
        elif self.style != "anthropic":
            told["prompt_tokens_details"] = {"cached_tokens": cached} if cached else None
        if self.style in _TELLS_REASONING_TOKENS:
            told["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if self.style == "deepseek":
            told["prompt_cache_hit_tokens"] = cached
            told["prompt_cache_miss_tokens"] = prompt - cached
        if self.style == "openrouter":
            told["cost"] = self.cost
        return told


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
class FaultInjector:
    """Decides what goes wrong with each request; remembers how many came."""

    def __init__(self, faults: Faults, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, bytes]] = Counter()
        self._times: Counter[int] = Counter()
        self._clock = clock
        self._buckets = [_bucket(rule, clock()) for rule in faults.rules]

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
            if rule.kind == "rate" and not (wait := self._take(place)):
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

    def _take(self, place: int) -> float:
        """Let a request through and return 0, or return the seconds until one may come."""
        wait = self._buckets[place].wait(1, self._clock())
        if not wait:
            self._buckets[place].take(1)
        return wait

    def _draw(self, place: int, key: tuple[str, bytes], attempt: int) -> float:
        """A number in [0, 1) that depends on nothing else."""
        text = f"{self._faults.seed}/{place}/{key[0]}/{attempt}/".encode() + key[1]
        return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48


def _bucket(rule: Rule, now: float) -> TokenBucket:
    """Such that a minute lets the burst through, and then so many each second."""
    return TokenBucket(60 * rule.per_second + rule.burst - 1, burst=rule.burst, now=now)


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()


def _excluded(rule: Rule, effects: Effects) -> bool:
    """Whether an earlier rule leaves nothing for this one to do."""
    if rule.kind in REFUSALS:
        return bool(REFUSALS & effects.keys())
    return rule.kind in effects or (rule.kind in CUTS and bool(CUTS & effects.keys()))


def read_faults(path: Path) -> Faults:
    """Read a file of faults.

    Raises:
        FormatError: It is missing, no YAML, or holds a field or a value that isn't known.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8-sig"), DistinctLoader)
        return TypeAdapter(Faults).validate_python({} if value is None else value)
    except FileNotFoundError:
        raise FormatError("no such file; faults are a YAML file with rules", file=path) from None
    except (UnicodeDecodeError, NotYamlError):
        raise FormatError("not YAML; faults are a YAML file with rules", file=path) from None
    except ValidationError as error:
        raise FormatError(_first_error(error, "faults"), file=path) from None
    except ConfigError as error:
        raise FormatError(str(error), file=path) from None


def parse_rule(text: str) -> Rule:
    """A rule from text such as `status,share=0.2,status=503`.

    Raises:
        ConfigError: The text isn't of this form, or names a kind or a field that isn't known.
    """
    kind, *rest = text.split(",")
    pairs = [part.partition("=") for part in rest]
    malformed = [name for name, sign, _ in pairs if not sign]
    if malformed:
        raise ConfigError(f"the fault {text!r}: {malformed[0]!r} isn't of the form field=value")
    value: dict[str, Any] = {name.strip(): content.strip() for name, _, content in pairs}
    if "requests" in value:
        value["requests"] = value["requests"].split()
    try:
        return TypeAdapter(Rule).validate_python({**value, "kind": kind.strip()})
    except ValidationError as error:
        raise ConfigError(f"the fault {text!r}: {_first_error(error, 'fault')}") from None


def _first_error(error: ValidationError, whole: str) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
